#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "core/gguf.h"
#include "headq/error.h"

namespace headq {

// A model's files, mapped: one, or the parts of a split one in order.
struct ModelFiles {
  std::vector<MappedFile> maps;
  std::vector<GgufFile> files;  // point into maps

  // path: a model, or the first file of a split one, whose other files must lie beside it. Throws
  // Error: kIo, kCorrupt, kUnsupported, kMismatch (not the first part).
  static ModelFiles open(const std::string& path);

  const GgufFile& first() const { return files.front(); }
  const GgufTensor* find_tensor(const std::string& name) const;  // null when there is none
};

// Reads metadata with their limits; messages name the file.
class ModelMetadata {
 public:
  ModelMetadata(const GgufFile& file, const std::string& path) : file_(file), path_(path) {}

  [[noreturn]] void fail(ErrorCode code, std::string_view why) const;

  std::optional<std::string_view> text(const std::string& key) const;
  // A whole number in lo..hi; nothing when the key is not there.
  std::optional<int> number(const std::string& key, int64_t lo, int64_t hi) const;
  // One number for all n layers or an array with one for each; empty when the key is not there.
  std::vector<int> per_layer(const std::string& key, size_t n) const;
  bool has_prefix(const std::string& prefix) const;

 private:
  int checked(const std::string& key, std::optional<int64_t> value, int64_t lo, int64_t hi) const;

  const GgufFile& file_;
  const std::string& path_;
};

inline constexpr int64_t kMaxSize = 1 << 20;  // of a dimension or a count in metadata

}  // namespace headq
