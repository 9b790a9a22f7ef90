#include "models/tiny_models.h"

#include <fmt/format.h>
#include <gguf.h>

#include <array>
#include <cmath>
#include <filesystem>
#include <ostream>
#include <stdexcept>

#include "models/tiny_gguf.h"
#include "models/tiny_vocab.h"
#include "models/tiny_weights.h"

namespace headq::testing {
namespace {

using enum TinyFamily;

struct FamilyFacts {
  TinyFamily family;
  const char* name;  // what tests print
  const char* arch;  // what llama.cpp calls it
  int n_layer;
  bool grouped;     // fewer KV heads than query heads by default
  bool free_width;  // n_embd may differ from n_head * head_dim
  bool window;
  RopePairs pairs;
};

// Mistral: the pinned llama.cpp reads "llama" files without their sliding window, so the family is
// written for the architecture whose block is the same and that applies the window (granite_swa,
// its multipliers 1, its attention sinks out of reach).
constexpr std::array<FamilyFacts, 10> kFamilies = {{
    {kGpt2, "gpt2", "gpt2", 2, false, false, false, RopePairs::kNone},
    {kGptNeoX, "gptneox", "gptneox", 2, false, false, false, RopePairs::kHalves},
    {kLlama, "llama", "llama", 2, true, true, false, RopePairs::kAdjacent},
    {kQwen2, "qwen2", "qwen2", 2, true, false, false, RopePairs::kHalves},
    {kMistral, "mistral", "granite_swa", 3, true, true, true, RopePairs::kAdjacent},
    {kGemma2, "gemma2", "gemma2", 2, true, true, true, RopePairs::kHalves},
    {kGemma3, "gemma3", "gemma3", 3, true, true, true, RopePairs::kHalves},
    {kGemma4, "gemma4", "gemma4", 4, true, true, true, RopePairs::kHalves},
    {kBloom, "bloom", "bloom", 2, false, false, false, RopePairs::kNone},
    {kGptOss, "gptoss", "gpt-oss", 2, true, true, true, RopePairs::kHalves},
}};

const FamilyFacts& facts(TinyFamily family) { return kFamilies[static_cast<size_t>(family)]; }

constexpr int kExperts = 4;
constexpr int kExpertsUsed = 2;
constexpr int kSharedCacheLayers = 2;  // Gemma 4: last layers that read earlier layers' caches

bool is_gemma(TinyFamily f) { return f == kGemma2 || f == kGemma3 || f == kGemma4; }
bool has_layer_norm(TinyFamily f) { return f == kGpt2 || f == kGptNeoX || f == kBloom; }

// Which layers see the window only.
bool is_window_layer(const TinyModelConfig& c, int il) {
  if (!facts(c.family).window) return false;
  if (c.family == kMistral || c.family == kGemma3) return il + 1 < c.n_layer;
  return il % 2 == 0;
}

int layer_head_dim(const TinyModelConfig& c, int il) {
  return c.family == kGemma4 && is_window_layer(c, il) ? c.head_dim / 2 : c.head_dim;
}

int rotated_channels(const TinyModelConfig& c, int head_dim) {
  if (facts(c.family).pairs == RopePairs::kNone) return 0;
  return c.family == kGptNeoX ? head_dim / 4 * 2 : head_dim;  // about half, even
}

AttentionShape attention_shape(const TinyModelConfig& c, int il) {
  const int d = layer_head_dim(c, il);
  return {.n_embd = c.n_embd,
          .n_head = c.n_head,
          .n_head_kv = c.n_head_kv,
          .head_dim = d,
          .n_rot = rotated_channels(c, d),
          .pairs = facts(c.family).pairs,
          .scale = c.family == kGemma4 ? 1.0 : 1.0 / std::sqrt(d),
          .sharpness = c.sharpness,
          .qk_norm = c.family == kGemma3 || c.family == kGemma4};
}

void add_metadata(const TinyModelConfig& c, const std::string& name, TinyGguf& out) {
  gguf_set_val_str(out.raw(), "general.name", name.c_str());
  out.set_u32("context_length", c.n_ctx_train);
  out.set_u32("embedding_length", c.n_embd);
  out.set_u32("block_count", c.n_layer);
  out.set_u32("feed_forward_length", c.n_ff);
  out.set_u32("vocab_size", tiny_vocab_size());
  out.set_u32("attention.head_count", c.n_head);
  out.set_u32("attention.head_count_kv", c.n_head_kv);
  out.set_u32("attention.key_length", c.head_dim);
  out.set_u32("attention.value_length", c.head_dim);
  if (has_layer_norm(c.family)) out.set_f32("attention.layer_norm_epsilon", 1e-5);
  if (!has_layer_norm(c.family)) out.set_f32("attention.layer_norm_rms_epsilon", 1e-6);
  if (has_rope(c.family)) {
    out.set_u32("rope.dimension_count", rotated_channels(c, c.head_dim));
    out.set_f32("rope.freq_base", 10000.0);
  }
  TinyVocab::get().add_to(out.raw());
}

void add_window_metadata(const TinyModelConfig& c, TinyGguf& out) {
  std::vector<bool> pattern;
  for (int il = 0; il < c.n_layer; ++il) pattern.push_back(is_window_layer(c, il));
  out.set_u32("attention.sliding_window", c.n_swa);
  out.set_flags("attention.sliding_window_pattern", pattern);
}

void add_family_metadata(const TinyModelConfig& c, TinyGguf& out) {
  if (has_window(c.family)) add_window_metadata(c, out);
  switch (c.family) {
    case kGptNeoX:
      out.set_flag("use_parallel_residual", true);
      break;
    case kMistral:
      out.set_f32("logit_scale", 1.0);
      break;
    case kGemma2:
      // Low enough to bend the logits that sharpness asks for.
      out.set_f32("attn_logit_softcapping", 3.0 * c.sharpness);
      out.set_f32("final_logit_softcapping", 30.0);
      break;
    case kGemma4:
      out.set_u32("embedding_length_per_layer_input", 0);
      out.set_u32("attention.shared_kv_layers", kSharedCacheLayers);
      out.set_u32("attention.key_length_swa", c.head_dim / 2);
      out.set_u32("attention.value_length_swa", c.head_dim / 2);
      out.set_u32("rope.dimension_count_swa", c.head_dim / 2);
      break;
    case kGptOss:
      out.set_u32("expert_count", kExperts);
      out.set_u32("expert_used_count", kExpertsUsed);
      out.set_u32("expert_feed_forward_length", c.n_ff);
      break;
    default:
      break;
  }
}

// Writes the tensors of one model, layer by layer.
class TensorWriter {
 public:
  TensorWriter(const TinyModelConfig& config, TinyGguf& out)
      : c_(config), out_(out), random_(config.seed) {}

  void add_all() {
    add_input();
    for (int il = 0; il < c_.n_layer; ++il) {
      prefix_ = fmt::format("blk.{}.", il);
      add_attention(il);
      if (c_.family == kGptOss) {
        add_experts();
      } else {
        add_feed_forward();
      }
    }
    prefix_.clear();
    norm("output_norm", 1.0);
    if (c_.family != kGemma2) linear("output", tiny_vocab_size(), c_.n_embd, 2.0);
  }

 private:
  void matrix(const std::string& name, int n_out, int n_in, std::vector<float> data) {
    out_.add(prefix_ + name + ".weight", {n_in, n_out}, std::move(data));
  }
  void linear(const std::string& name, int n_out, int n_in, double gain) {
    matrix(name, n_out, n_in, make_linear(random_, n_out, n_in, gain));
  }
  void bias(const std::string& name, std::vector<float> data) {
    const int64_t n = static_cast<int64_t>(data.size());
    out_.add(prefix_ + name + ".bias", {n}, std::move(data));
  }
  void vector(const std::string& name, std::vector<float> data) {
    const int64_t n = static_cast<int64_t>(data.size());
    out_.add(prefix_ + name + ".weight", {n}, std::move(data));
  }
  void norm(const std::string& name, double center) {
    vector(name, make_norm(random_, c_.n_embd, center));
    if (has_layer_norm(c_.family)) bias(name, random_.gaussians(c_.n_embd, 0.1));
  }

  void add_input() {
    // Gemma multiplies embeddings by sqrt(n_embd).
    const double rms = is_gemma(c_.family) ? 1.0 / std::sqrt(c_.n_embd) : 1.0;
    matrix("token_embd", tiny_vocab_size(), c_.n_embd,
           make_embedding(random_, tiny_vocab_size(), c_.n_embd, rms));
    if (c_.family == kGpt2) {
      const size_t n = static_cast<size_t>(c_.n_ctx_train) * c_.n_embd;
      matrix("position_embd", c_.n_ctx_train, c_.n_embd, random_.gaussians(n, 0.3));
    }
    if (c_.family == kBloom) norm("token_embd_norm", 1.0);
    if (c_.family == kGemma4) vector("rope_freqs", std::vector<float>(c_.head_dim / 2, 1.0f));
  }

  void add_projections(const AttentionShape& shape, const AttentionWeights& w, bool own_cache) {
    const int n_q = shape.n_head * shape.head_dim;
    const int n_kv = shape.n_head_kv * shape.head_dim;
    if (has_layer_norm(c_.family)) {
      matrix("attn_qkv", n_q + 2 * n_kv, c_.n_embd, concat(w.q, w.k, w.v));
      bias("attn_qkv", concat(w.q_bias, w.k_bias, w.v_bias));
    } else {
      matrix("attn_q", n_q, c_.n_embd, w.q);
      if (own_cache) matrix("attn_k", n_kv, c_.n_embd, w.k);
      if (own_cache) matrix("attn_v", n_kv, c_.n_embd, w.v);
    }
    if (c_.family == kQwen2 || c_.family == kGptOss) {
      bias("attn_q", w.q_bias);
      bias("attn_k", w.k_bias);
      bias("attn_v", w.v_bias);
    }
    if (shape.qk_norm) {
      vector("attn_q_norm", w.q_norm);
      if (own_cache) vector("attn_k_norm", w.k_norm);
    }
  }

  void add_attention(int il) {
    norm("attn_norm", 1.0);
    const AttentionShape shape = attention_shape(c_, il);
    const bool own_cache = c_.family != kGemma4 || il < c_.n_layer - kSharedCacheLayers;
    add_projections(shape, make_attention(random_, shape), own_cache);
    // Attention averages a few values, so its output is scaled up to weigh in the residual stream.
    linear("attn_output", c_.n_embd, shape.n_head * shape.head_dim, 2.0);
    if (has_layer_norm(c_.family) || c_.family == kGptOss) {
      bias("attn_output", random_.gaussians(c_.n_embd, 0.1));
    }
    if (is_gemma(c_.family)) norm("post_attention_norm", 0.8);
    if (c_.family == kGptOss) {
      vector("attn_sinks", random_.gaussians(c_.n_head, c_.sharpness));
      norm("post_attention_norm", 1.0);
    }
    if (c_.family == kMistral) vector("attn_sinks", std::vector<float>(c_.n_head, -100.0f));
  }

  void add_feed_forward() {
    norm("ffn_norm", 1.0);
    if (!has_layer_norm(c_.family)) linear("ffn_gate", c_.n_ff, c_.n_embd, 1.0);
    linear("ffn_up", c_.n_ff, c_.n_embd, 1.0);
    linear("ffn_down", c_.n_embd, c_.n_ff, 1.0);
    if (has_layer_norm(c_.family)) {
      bias("ffn_up", random_.gaussians(c_.n_ff, 0.1));
      bias("ffn_down", random_.gaussians(c_.n_embd, 0.1));
    }
    if (is_gemma(c_.family)) norm("post_ffw_norm", 0.5);
  }

  void expert(const std::string& name, int n_out, int n_in) {
    out_.add(prefix_ + name + ".weight", {n_in, n_out, kExperts},
             make_linear(random_, n_out * kExperts, n_in, 1.0));
    out_.add(prefix_ + name + ".bias", {n_out, kExperts},
             random_.gaussians(static_cast<size_t>(n_out) * kExperts, 0.1));
  }

  void add_experts() {
    // The router's choice is discrete, so it must not hang on the last bits of attention: a small
    // weight and a clear bias give every token of a layer the same two experts.
    linear("ffn_gate_inp", kExperts, c_.n_embd, 0.02);
    std::vector<float> preference(kExperts);
    for (int e = 0; e < kExperts; ++e) preference[e] = static_cast<float>(e);
    bias("ffn_gate_inp", preference);
    expert("ffn_gate_exps", c_.n_ff, c_.n_embd);
    expert("ffn_up_exps", c_.n_ff, c_.n_embd);
    expert("ffn_down_exps", c_.n_embd, c_.n_ff);
  }

  const TinyModelConfig& c_;
  TinyGguf& out_;
  Random random_;
  std::string prefix_;
};

void validate(const TinyModelConfig& c) {
  const auto require = [&](bool ok, const std::string& what) {
    if (!ok) throw std::invalid_argument(fmt::format("{}: {}", to_string(c.family), what));
  };
  require(c.head_dim > 0 && c.head_dim % 4 == 0, "head_dim must be a multiple of 4");
  require(c.n_head_kv > 0 && c.n_head % c.n_head_kv == 0, "n_head must be a multiple of n_head_kv");
  require(facts(c.family).free_width || c.n_embd == c.n_head * c.head_dim,
          "n_embd must be n_head * head_dim");
  require(c.family != kGemma4 || c.n_layer == 4, "n_layer must be 4");
}

std::string file_name(const TinyModelConfig& c) {
  uint64_t hash = 1469598103934665603ull;
  const auto mix = [&](uint64_t value) { hash = (hash ^ value) * 1099511628211ull; };
  for (int x : {c.n_layer, c.n_head, c.n_head_kv, c.head_dim, c.n_embd, c.n_ff, c.n_ctx_train,
                c.n_swa, static_cast<int>(c.sharpness * 1000)}) {
    mix(static_cast<uint64_t>(x));
  }
  mix(c.seed);
  return fmt::format("{}-{:016x}", to_string(c.family), hash);
}

}  // namespace

std::span<const TinyFamily> all_tiny_families() {
  static constexpr std::array<TinyFamily, kFamilies.size()> kAll = {
      kGpt2, kGptNeoX, kLlama, kQwen2, kMistral, kGemma2, kGemma3, kGemma4, kBloom, kGptOss};
  return kAll;
}

const char* to_string(TinyFamily family) { return facts(family).name; }
std::ostream& operator<<(std::ostream& out, TinyFamily family) { return out << to_string(family); }
bool has_rope(TinyFamily family) { return facts(family).pairs != RopePairs::kNone; }
bool has_window(TinyFamily family) { return facts(family).window; }

TinyModelConfig resolved(const TinyModelConfig& config) {
  TinyModelConfig c = config;
  const FamilyFacts& family = facts(c.family);
  if (c.n_layer == 0) c.n_layer = family.n_layer;
  if (c.n_head_kv == 0) c.n_head_kv = family.grouped ? c.n_head / 2 : c.n_head;
  if (c.n_embd == 0) c.n_embd = c.n_head * c.head_dim;
  if (c.n_ff == 0) c.n_ff = 2 * c.n_embd;
  return c;
}

std::string write_tiny_model(const TinyModelConfig& config, const std::string& dir) {
  const TinyModelConfig c = resolved(config);
  validate(c);
  const std::string name = file_name(c);
  const std::string path = (std::filesystem::path(dir) / (name + ".gguf")).string();
  TinyGguf out(facts(c.family).arch);
  add_metadata(c, name, out);
  add_family_metadata(c, out);
  TensorWriter(c, out).add_all();
  out.write(path);
  return path;
}

int tiny_vocab_size() { return static_cast<int>(TinyVocab::get().pieces.size()); }

std::vector<int32_t> tiny_tokens(int n, uint64_t seed) {
  Random random(seed);
  const int first = TinyVocab::get().n_special;
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = first + random.below(tiny_vocab_size() - first);
  return tokens;
}

std::string tiny_text(int n_words, uint64_t seed) {
  Random random(seed);
  std::string text;
  for (int w = 0; w < n_words; ++w) {
    if (w > 0) text += w % 12 == 0 ? "\n" : " ";
    const int length = 2 + random.below(6);
    for (int i = 0; i < length; ++i) text += static_cast<char>('a' + random.below(26));
  }
  return text;
}

}  // namespace headq::testing
