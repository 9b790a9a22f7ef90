#pragma once

#include <string>
#include <vector>

struct gguf_context;

namespace headq::testing {

// A SentencePiece-style vocabulary: <unk>, <s>, </s>, 256 byte tokens, and some word pieces. Any
// text can be tokenized, and any token has a text.
struct TinyVocab {
  std::vector<std::string> pieces;
  std::vector<float> scores;
  std::vector<int32_t> types;  // llama.cpp's token types: 1 normal, 2 unknown, 3 control, 6 byte

  int n_special = 0;  // the first n_special tokens are special
  int n_bytes = 0;    // then come the byte tokens

  static const TinyVocab& get();
  void add_to(gguf_context* gguf) const;
};

}  // namespace headq::testing
