#include "runner/text.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "headq/error.h"

namespace headq {

std::string read_text(const std::string& path) {
  if (std::filesystem::is_directory(path)) {
    throw Error(ErrorCode::kIo, fmt::format("text '{}' is a folder", path));
  }
  errno = 0;
  std::ifstream in(path, std::ios::binary);
  std::string text;
  if (in) text.assign(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
  if (!in) {
    throw Error(ErrorCode::kIo, fmt::format("cannot read text '{}': {}", path,
                                            std::strerror(errno != 0 ? errno : EIO)));
  }
  if (text.ends_with('\n')) text.pop_back();
  if (text.empty()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("text '{}' is empty", path));
  }
  return text;
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
