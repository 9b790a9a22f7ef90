#include "codec/model_files.h"

#include <fmt/format.h>

#include <algorithm>

namespace headq {
namespace {

constexpr int64_t kMaxParts = 99999;  // five digits in the names of split files

// Name of part i (from 0) of the split model whose first part is path.
std::string part_name(const std::string& path, int i, int n) {
  const auto suffix = [&](int part) { return fmt::format("-{:05}-of-{:05}.gguf", part + 1, n); };
  if (!path.ends_with(suffix(0))) {
    throw Error(ErrorCode::kMismatch,
                fmt::format("{}: the first of {} files, but its name does not end in {}", path, n,
                            suffix(0)));
  }
  return path.substr(0, path.size() - suffix(0).size()) + suffix(i);
}

}  // namespace

ModelFiles ModelFiles::open(const std::string& path) {
  ModelFiles out;
  const auto add = [&out](const std::string& name) {
    out.maps.emplace_back(name);
    out.files.push_back(GgufFile::parse(out.maps.back().bytes(), name));
  };
  add(path);
  const ModelMetadata meta(out.first(), path);
  const int n_parts = meta.number("split.count", 0, kMaxParts).value_or(1);
  if (meta.number("split.no", 0, kMaxParts).value_or(0) != 0) {
    meta.fail(ErrorCode::kMismatch, "a later file of a split model; name the first one");
  }
  for (int i = 1; i < n_parts; ++i) add(part_name(path, i, n_parts));
  return out;
}

const GgufTensor* ModelFiles::find_tensor(const std::string& name) const {
  for (const GgufFile& file : files) {
    if (const GgufTensor* tensor = file.find_tensor(name)) return tensor;
  }
  return nullptr;
}

void ModelMetadata::fail(ErrorCode code, std::string_view why) const {
  throw Error(code, fmt::format("{}: {}", path_, why));
}

std::optional<std::string_view> ModelMetadata::text(const std::string& key) const {
  const GgufValue* value = file_.find(key);
  return value != nullptr ? value->as_string() : std::nullopt;
}

std::optional<int> ModelMetadata::number(const std::string& key, int64_t lo, int64_t hi) const {
  const GgufValue* value = file_.find(key);
  if (value == nullptr) return std::nullopt;
  return checked(key, value->as_int(), lo, hi);
}

std::vector<int> ModelMetadata::per_layer(const std::string& key, size_t n) const {
  const GgufValue* value = file_.find(key);
  if (value == nullptr) return {};
  if (!value->is_array()) return std::vector<int>(n, checked(key, value->as_int(), 0, kMaxSize));
  const auto numbers = value->as_ints();
  if (!numbers || numbers->size() != n) {
    fail(ErrorCode::kCorrupt, fmt::format("{} is not an array of {} numbers", key, n));
  }
  std::vector<int> out;
  for (int64_t x : *numbers) out.push_back(checked(key, x, 0, kMaxSize));
  return out;
}

bool ModelMetadata::has_prefix(const std::string& prefix) const {
  return std::any_of(file_.pairs().begin(), file_.pairs().end(),
                     [&](const auto& pair) { return pair.first.starts_with(prefix); });
}

int ModelMetadata::checked(const std::string& key, std::optional<int64_t> value, int64_t lo,
                           int64_t hi) const {
  if (!value) fail(ErrorCode::kCorrupt, fmt::format("{} is not a whole number", key));
  if (*value < lo || *value > hi) {
    fail(ErrorCode::kCorrupt, fmt::format("{} {} is not in {}..{}", key, *value, lo, hi));
  }
  return static_cast<int>(*value);
}

}  // namespace headq
