#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headq {

// A text file.
struct TextFile {
  std::string name;    // without folders
  std::string text;    // as llama.cpp's programs read it: whole, without the last newline
  std::string source;  // "name size sha256" of the file
};

// Throws Error(kIo) when path cannot be read and Error(kInvalidArgument) when no text is in it.
TextFile read_text(const std::string& path);

// Name of a file without its folders.
std::string base_name(const std::string& path);

// Non-overlapping runs of n_ctx tokens from the start of a tokenised text. Where the model starts
// texts with a token of its own, that token takes the place of each chunk's first one.
class ChunkedText {
 public:
  // tokens: the whole text; bos: the token that starts texts, or -1. Throws Error(kInvalidArgument)
  // naming the text when it is too short for one chunk.
  ChunkedText(std::string name, std::vector<int32_t> tokens, int n_ctx, int32_t bos);

  const std::string& name() const { return name_; }
  int n_ctx() const { return n_ctx_; }
  size_t n_tokens() const { return tokens_.size(); }
  int n_chunks() const { return static_cast<int>(tokens_.size() / static_cast<size_t>(n_ctx_)); }

  // n chunks from one on as a text of their own; first + n is at most n_chunks(), n positive.
  ChunkedText part(int first, int n) const;
  ChunkedText last_chunk() const { return part(n_chunks() - 1, 1); }

  // What the model reads: [n_ctx], chunk in [0, n_chunks()).
  std::vector<int32_t> input(int chunk) const;
  // The text itself, where predictions are checked: [n_ctx].
  std::span<const int32_t> text(int chunk) const;

 private:
  std::string name_;
  std::vector<int32_t> tokens_;
  int n_ctx_;
  int32_t bos_;
};

}  // namespace headq
