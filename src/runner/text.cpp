#include "runner/text.h"

#include <fmt/format.h>

#include <filesystem>

#include "core/file.h"
#include "core/sha256.h"
#include "headq/error.h"

namespace headq {

TextFile read_text(const std::string& path) {
  const std::vector<uint8_t> bytes = read_file(path);
  TextFile file;
  file.name = base_name(path);
  file.text.assign(bytes.begin(), bytes.end());
  file.source = fmt::format("{} {} {}", file.name, bytes.size(), sha256_hex(bytes));
  if (file.text.ends_with('\n')) file.text.pop_back();
  if (file.text.empty()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("text '{}' is empty", path));
  }
  return file;
}

std::string base_name(const std::string& path) {
  return std::filesystem::path(path).filename().string();
}

ChunkedText::ChunkedText(std::string name, std::vector<int32_t> tokens, int n_ctx, int32_t bos)
    : name_(std::move(name)), tokens_(std::move(tokens)), n_ctx_(n_ctx), bos_(bos) {
  if (tokens_.size() < static_cast<size_t>(n_ctx_)) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("text '{}' has {} tokens, one chunk needs {} (-c)", name_,
                            tokens_.size(), n_ctx_));
  }
}

ChunkedText ChunkedText::part(int first, int n) const {
  const auto begin = tokens_.begin() + static_cast<std::ptrdiff_t>(first) * n_ctx_;
  return ChunkedText(name_, {begin, begin + static_cast<std::ptrdiff_t>(n) * n_ctx_}, n_ctx_, bos_);
}

std::span<const int32_t> ChunkedText::text(int chunk) const {
  const size_t n = static_cast<size_t>(n_ctx_);
  return std::span(tokens_).subspan(static_cast<size_t>(chunk) * n, n);
}

std::vector<int32_t> ChunkedText::input(int chunk) const {
  const std::span<const int32_t> tokens = text(chunk);
  std::vector<int32_t> input(tokens.begin(), tokens.end());
  if (bos_ >= 0) input[0] = bos_;
  return input;
}

}  // namespace headq
