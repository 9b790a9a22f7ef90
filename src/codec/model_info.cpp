#include "headq/model_info.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string_view>

#include "codec/model_files.h"
#include "core/sha256.h"
#include "headq/error.h"
#include "headq/spec.h"

namespace headq {
namespace {

constexpr int64_t kMaxLayers = 512;  // llama.cpp's own limit
constexpr size_t kSampleBytes = 4096;

// Feeds a hash with fields that cannot run into each other.
class FieldHash {
 public:
  void add(uint64_t value) {
    uint8_t bytes[8];
    for (int i = 0; i < 8; ++i) bytes[i] = static_cast<uint8_t>(value >> (8 * i));
    sha_.update(bytes);
  }
  void add(std::span<const uint8_t> bytes) {
    add(bytes.size());
    sha_.update(bytes);
  }
  std::string hex() { return sha_.hex(); }

 private:
  Sha256 sha_;
};

// docs/format.md, "Model fingerprint".
std::string fingerprint_of(const ModelFiles& model, const std::string& arch) {
  const std::string prefix = arch + ".";
  std::vector<const std::pair<std::string, GgufValue>*> pairs;
  for (const auto& pair : model.first().pairs()) {
    if (pair.first.starts_with(prefix)) pairs.push_back(&pair);
  }
  std::vector<const GgufTensor*> tensors;
  for (const GgufFile& file : model.files) {
    for (const GgufTensor& tensor : file.tensors()) tensors.push_back(&tensor);
  }
  std::sort(pairs.begin(), pairs.end(), [](auto* a, auto* b) { return a->first < b->first; });
  std::sort(tensors.begin(), tensors.end(), [](auto* a, auto* b) { return a->name < b->name; });

  FieldHash hash;
  hash.add(as_bytes("headq-model-1"));
  hash.add(as_bytes(arch));
  hash.add(pairs.size());
  for (const auto* pair : pairs) {
    hash.add(as_bytes(pair->first));
    hash.add(static_cast<uint64_t>(pair->second.type));
    hash.add(static_cast<uint64_t>(pair->second.element));
    hash.add(pair->second.raw);
  }
  hash.add(tensors.size());
  for (const GgufTensor* tensor : tensors) {
    hash.add(as_bytes(tensor->name));
    hash.add(uint64_t{tensor->type});
    for (uint64_t size : tensor->ne) hash.add(size);
    hash.add(tensor->data.first(std::min(kSampleBytes, tensor->data.size())));
  }
  return hash.hex();
}

// Works out which layer has a cache of which shape.
class LayerReader {
 public:
  LayerReader(const ModelFiles& model, const ModelMetadata& meta, const std::string& arch)
      : model_(model), meta_(meta), arch_(arch) {}

  std::vector<LayerShape> run(bool is_recurrent) {
    const auto n_block = meta_.number(key("block_count"), 1, kMaxLayers);
    if (!n_block) meta_.fail(ErrorCode::kUnsupported, fmt::format("has no {}", key("block_count")));
    n_block_ = static_cast<size_t>(*n_block);
    n_head_ = meta_.per_layer(key("attention.head_count"), n_block_);
    if (n_head_.empty() && !is_recurrent) {
      meta_.fail(ErrorCode::kUnsupported, fmt::format("has no {}", key("attention.head_count")));
    }
    n_head_.resize(n_block_);
    n_head_kv_ = meta_.per_layer(key("attention.head_count_kv"), n_block_);
    if (n_head_kv_.empty()) n_head_kv_ = n_head_;
    read_lengths();

    std::vector<LayerShape> out;
    for (size_t il = 0; il < n_block_; ++il) out.push_back(shape(il));
    // A looped model runs its blocks several times, each time with a cache of its own.
    const int n_loops = meta_.number(key("num_loops"), 1, kMaxLayers).value_or(1);
    if (n_block_ * static_cast<size_t>(n_loops) > static_cast<size_t>(kMaxLayers)) {
      meta_.fail(ErrorCode::kCorrupt, fmt::format("{} loops of {} blocks are more than {} layers",
                                                  n_loops, n_block_, kMaxLayers));
    }
    for (int loop = 1; loop < n_loops; ++loop) {
      for (size_t il = 0; il < n_block_; ++il) out.push_back(out[il]);
    }
    return out;
  }

 private:
  std::string key(std::string_view name) const { return fmt::format("{}.{}", arch_, name); }

  void read_lengths() {
    const int n_embd = meta_.number(key("embedding_length"), 0, kMaxSize).value_or(0);
    const int by_width = n_head_[0] > 0 ? n_embd / n_head_[0] : 0;
    const auto length = [&](std::string_view name, int otherwise) {
      return meta_.number(key(name), 0, kMaxSize).value_or(otherwise);
    };
    full_.d_k = length("attention.key_length", by_width);
    full_.d_v = length("attention.value_length", by_width);
    windowed_.d_k = length("attention.key_length_swa", full_.d_k);
    windowed_.d_v = length("attention.value_length_swa", full_.d_v);
    const GgufValue* pattern = model_.first().find(key("attention.sliding_window_pattern"));
    if (pattern != nullptr && pattern->is_array()) {
      is_windowed_ = meta_.per_layer(key("attention.sliding_window_pattern"), n_block_);
    }
  }

  LayerShape shape(size_t il) const {
    if (!has_cache(il)) return {};
    LayerShape out = is_windowed(il) ? windowed_ : full_;
    out.n_head_kv = n_head_kv_[il];
    return out;
  }

  bool has_cache(size_t il) const {
    if (n_head_kv_[il] == 0) return false;
    // Blocks that only draft the next tokens are not part of the main cache.
    const auto draft = meta_.number(key("nextn_predict_layers"), 0, kMaxLayers).value_or(0);
    if (il + static_cast<size_t>(draft) >= n_block_) return false;
    // The last layers of some models read the cache of earlier ones.
    if (arch_ == "gemma3n") return il < 20;  // llama.cpp knows this number, the file does not
    const auto shared = meta_.number(key("attention.shared_kv_layers"), 0, kMaxLayers).value_or(0);
    return il + static_cast<size_t>(shared) < n_block_;
  }

  // Only asked for where windowed layers have head_dims of their own.
  bool is_windowed(size_t il) const {
    if (windowed_ == full_) return false;
    if (!is_windowed_.empty()) return is_windowed_[il] != 0;
    const std::string name = fmt::format("blk.{}.attn_k.weight", il);
    for (const GgufFile& file : model_.files) {
      const GgufTensor* tensor = file.find_tensor(name);
      if (tensor == nullptr) continue;
      const auto rows = [&](int d) {
        return static_cast<uint64_t>(d) * static_cast<uint64_t>(n_head_kv_[il]);
      };
      if (tensor->ne[1] == rows(windowed_.d_k)) return true;
      if (tensor->ne[1] == rows(full_.d_k)) return false;
    }
    meta_.fail(ErrorCode::kUnsupported,
               fmt::format("does not say whether layer {} has a sliding window", il));
  }

  const ModelFiles& model_;
  const ModelMetadata& meta_;
  const std::string& arch_;
  size_t n_block_ = 0;
  std::vector<int> n_head_, n_head_kv_;  // [n_block]
  std::vector<int> is_windowed_;         // [n_block] or empty
  LayerShape full_, windowed_;           // head_dims alone
};

bool has_recurrent_layers(const ModelMetadata& meta, const std::string& arch) {
  for (const char* group : {".ssm.", ".wkv.", ".shortconv.", ".kda."}) {
    if (meta.has_prefix(arch + group)) return true;
  }
  return false;
}

}  // namespace

ModelInfo ModelInfo::load(const std::string& path) {
  const ModelFiles model = ModelFiles::open(path);
  const ModelMetadata meta(model.first(), path);
  ModelInfo info;
  if (meta.text("general.type") == "headq-profile") {
    meta.fail(ErrorCode::kMismatch, "a headq profile, not a model");
  }
  info.arch = meta.text("general.architecture").value_or("");
  if (info.arch.empty()) meta.fail(ErrorCode::kUnsupported, "names no model architecture");
  info.name = meta.text("general.name").value_or("");
  const auto number = [&](std::string_view name) {
    return meta.number(fmt::format("{}.{}", info.arch, name), 0, INT32_MAX).value_or(0);
  };
  info.is_recurrent = has_recurrent_layers(meta, info.arch);
  info.layers = LayerReader(model, meta, info.arch).run(info.is_recurrent);
  info.n_layer = static_cast<int>(info.layers.size());
  info.n_ctx_train = number("context_length");
  info.n_swa = number("attention.sliding_window");
  info.is_mla = number("attention.key_length_mla") != 0;
  info.is_causal = meta.number(info.arch + ".attention.causal", 0, 1).value_or(1) != 0;
  info.has_score_bias = number("attention.relative_buckets_count") != 0;
  info.fingerprint = fingerprint_of(model, info.arch);
  return info;
}

std::string ModelInfo::why_unsupported() const {
  if (is_recurrent) return fmt::format("{} has recurrent layers, whose state is no KV cache", arch);
  if (is_mla)
    return fmt::format("{} has multi-head latent attention, one cache for both sides", arch);
  if (!is_causal) return fmt::format("{} is an encoder and has no KV cache", arch);
  if (has_score_bias) {
    return fmt::format("{} adds a learned bias to scores, which flash attention cannot do", arch);
  }
  if (std::all_of(layers.begin(), layers.end(), [](auto& s) { return s.n_head_kv == 0; })) {
    return fmt::format("{} has no layer with a KV cache", arch);
  }
  for (size_t il = 0; il < layers.size(); ++il) {
    if (layers[il].n_head_kv == 0) continue;
    for (const auto& [side, d] : {std::pair("keys", layers[il].d_k), {"values", layers[il].d_v}}) {
      if (d < kMinHeadDim || d > kMaxHeadDim) {
        return fmt::format("layer {} has {} of head_dim {}, HeadQ serves {}..{}", il, side, d,
                           kMinHeadDim, kMaxHeadDim);
      }
    }
  }
  return "";
}

std::string ModelInfo::why_mismatch(const Profile& profile) const {
  if (profile.model_arch != arch) {
    return fmt::format("the profile is for a {} model, this is {}", profile.model_arch, arch);
  }
  for (size_t entry = 0; entry < profile.layer_ids.size(); ++entry) {
    const int il = profile.layer_ids[entry];
    const LayerShape have = il < n_layer ? layers[static_cast<size_t>(il)] : LayerShape{};
    const LayerShape& want = profile.shapes[entry];
    if (have != want) {
      return fmt::format("the profile has {} KV heads of {}/{} in layer {}, this model {} of {}/{}",
                         want.n_head_kv, want.d_k, want.d_v, il, have.n_head_kv, have.d_k,
                         have.d_v);
    }
  }
  if (profile.model_fingerprint != fingerprint) {
    return fmt::format("the profile is for '{}' with fingerprint {:.12}, this is '{}' with {:.12}",
                       profile.model_name, profile.model_fingerprint, name, fingerprint);
  }
  return "";
}

}  // namespace headq
