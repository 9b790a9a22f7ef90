#pragma once

// Tiny GGUF models with random weights, one per family that HeadQ must serve. They load in an
// unmodified llama.cpp, need no outside file, and attend like real models do: softmax rows are
// neither flat nor one-hot, keys have outlier channels and a mean, queries are close to low rank.

#include <cstdint>
#include <iosfwd>
#include <span>
#include <string>
#include <vector>

namespace headq::testing {

enum class TinyFamily {
  kGpt2,     // learned positions, LayerNorm, fused QKV with bias
  kGptNeoX,  // partial RoPE (NeoX pairs), parallel residual
  kLlama,    // RoPE (adjacent pairs), RMSNorm, grouped heads
  kQwen2,    // RoPE (NeoX pairs), QKV biases
  kMistral,  // Llama block with a sliding window in every layer but the last
  kGemma2,   // attention logit softcap, windowed and global layers, post-norms
  kGemma3,   // Q/K norms, head_dim unlike n_embd/n_head, windowed and global layers
  kGemma4,   // last two layers read the cache of earlier ones; window layers have half the head_dim
  kBloom,    // ALiBi, no RoPE
  kGptOss,   // attention sinks input, mixture of experts, windowed and global layers
};

// All families, in the order above.
std::span<const TinyFamily> all_tiny_families();

// The name tests print: "gpt2", "gptneox", ...
const char* to_string(TinyFamily family);
std::ostream& operator<<(std::ostream& out, TinyFamily family);

struct TinyModelConfig {
  TinyFamily family = TinyFamily::kLlama;
  int n_layer = 0;    // 0: the least that shows what the family is about (2 to 4)
  int n_head = 4;     // query heads
  int n_head_kv = 0;  // 0: n_head / 2 where the family groups heads, else n_head
  int head_dim = 32;  // even; keys and values alike
  // Width of the residual stream; 0: n_head * head_dim. GPT-2, GPT-NeoX, Qwen2, and BLOOM allow
  // nothing else.
  int n_embd = 0;
  int n_ff = 0;  // 0: 2 * n_embd
  int n_ctx_train = 4096;
  int n_swa = 48;          // window of the families that have one
  double sharpness = 3.0;  // standard deviation of attention logits that the weights aim at
  uint64_t seed = 1;
};

// n_head_kv, n_layer, n_embd and n_ff as they will be written (zeros replaced).
TinyModelConfig resolved(const TinyModelConfig& config);

// True when the family rotates keys, so that a context shift changes cached rows.
bool has_rope(TinyFamily family);
// True when the family has a sliding-window cache beside the full one.
bool has_window(TinyFamily family);

// Writes "<dir>/<family>-<hash of config>.gguf" and returns the path. The same config gives the
// same bytes. Throws std::invalid_argument for a config the family cannot have and
// std::runtime_error when the file cannot be written.
std::string write_tiny_model(const TinyModelConfig& config, const std::string& dir);

// Size of the vocabulary all tiny models share.
int tiny_vocab_size();
// n pseudo-random token ids, none of them special.
std::vector<int32_t> tiny_tokens(int n, uint64_t seed);
// Plain words for programs that read text; about 3 tokens per 4 characters.
std::string tiny_text(int n_words, uint64_t seed);

}  // namespace headq::testing
