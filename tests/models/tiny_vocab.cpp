#include "models/tiny_vocab.h"

#include <fmt/format.h>
#include <gguf.h>

namespace headq::testing {
namespace {

constexpr int32_t kNormal = 1;
constexpr int32_t kUnknown = 2;
constexpr int32_t kControl = 3;
constexpr int32_t kByte = 6;

const std::string kSpace = "\xE2\x96\x81";  // U+2581 stands for a space in the pieces

void add(TinyVocab& vocab, const std::string& piece, float score, int32_t type) {
  vocab.pieces.push_back(piece);
  vocab.scores.push_back(score);
  vocab.types.push_back(type);
}

TinyVocab build() {
  TinyVocab vocab;
  add(vocab, "<unk>", 0.0f, kUnknown);
  add(vocab, "<s>", 0.0f, kControl);
  add(vocab, "</s>", 0.0f, kControl);
  vocab.n_special = 3;
  for (int byte = 0; byte < 256; ++byte) add(vocab, fmt::format("<0x{:02X}>", byte), 0.0f, kByte);
  vocab.n_bytes = 256;
  // The tokenizer merges neighbours into the piece of the highest score.
  float score = -1.0f;
  for (const char* pair : {"th", "he", "in", "er", "an", "re"}) add(vocab, pair, score--, kNormal);
  for (const char* start : {"t", "a", "s"}) add(vocab, kSpace + start, score--, kNormal);
  add(vocab, kSpace, score--, kNormal);
  for (char c = 'a'; c <= 'z'; ++c) add(vocab, std::string(1, c), score--, kNormal);
  return vocab;
}

}  // namespace

const TinyVocab& TinyVocab::get() {
  static const TinyVocab vocab = build();
  return vocab;
}

void TinyVocab::add_to(gguf_context* gguf) const {
  std::vector<const char*> strings;
  for (const std::string& piece : pieces) strings.push_back(piece.c_str());
  gguf_set_val_str(gguf, "tokenizer.ggml.model", "llama");
  gguf_set_arr_str(gguf, "tokenizer.ggml.tokens", strings.data(), strings.size());
  gguf_set_arr_data(gguf, "tokenizer.ggml.scores", GGUF_TYPE_FLOAT32, scores.data(), scores.size());
  gguf_set_arr_data(gguf, "tokenizer.ggml.token_type", GGUF_TYPE_INT32, types.data(), types.size());
  gguf_set_val_u32(gguf, "tokenizer.ggml.unknown_token_id", 0);
  gguf_set_val_u32(gguf, "tokenizer.ggml.bos_token_id", 1);
  gguf_set_val_u32(gguf, "tokenizer.ggml.eos_token_id", 2);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_bos_token", true);
  gguf_set_val_bool(gguf, "tokenizer.ggml.add_eos_token", false);
}

}  // namespace headq::testing
