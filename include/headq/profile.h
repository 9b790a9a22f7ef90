#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headq {

struct KvSpec;

// Shape of one layer's cache.
struct LayerShape {
  int n_head_kv = 0;
  int d_k = 0;  // head_dim of keys
  int d_v = 0;  // head_dim of values

  bool operator==(const LayerShape&) const = default;
};

// How the codec nib<b> codes one head's keys or values (docs/nib.md):
//
//   y = analysis (x - mean),   y^_c = sum over nibbles g that reach c of scale * codebook[n_g],
//   x^ = mean + sum_c y^_c synthesis[c].
struct NibCode {
  std::vector<float> mean;        // [d]
  std::vector<float> analysis;    // [n_coords][d]
  std::vector<float> synthesis;   // [n_coords][d]
  std::vector<int32_t> reach;     // [n_nibbles][2] first coordinate, one past the last
  std::vector<float> scale;       // [n_terms], the coordinates nibble 0 reaches first
  std::vector<int8_t> codebook;   // [n_terms][16]
  // What the fit expects, over all coordinates, those without a code included: the mean of
  // |y - y^|^2, and of |y|^2. For keys that is the variance of scores, in squared nats, that their
  // error and they themselves cause, weighted by how undecided the softmax is (docs/nib.md).
  float error = 0.0f;
  float power = 0.0f;

  int n_nibbles() const { return static_cast<int>(reach.size() / 2); }
  int n_coords() const {
    return mean.empty() ? 0 : static_cast<int>(analysis.size() / mean.size());
  }
  uint64_t bytes() const {
    if (reach.empty()) return 0;
    return (mean.size() + analysis.size() + synthesis.size() + reach.size() + scale.size() + 2) * 4 +
           codebook.size();
  }
  bool operator==(const NibCode&) const = default;
};

// What calibration knows of one layer and KV head. Vectors are row-major f32.
struct HeadProfile {
  std::vector<float> query_basis;     // [n_basis][d_k] eigenvectors of E[q q^T], strongest first
  std::vector<float> query_spectrum;  // [d_k] eigenvalues of E[q q^T], descending
  std::vector<float> key_basis;       // [n_basis][d_k] eigenvectors of Cov(k), strongest first
  std::vector<float> key_spectrum;    // [d_k] eigenvalues of Cov(k), descending
  std::vector<float> key_mean;        // [d_k] E[k]
  std::vector<float> query_energy;    // [d_k] E[q_c^2]
  std::vector<float> key_variance;    // [d_k] Var(k_c)
  std::vector<float> value_variance;  // [d_v] Var(v_c)
  NibCode key_nib;                    // empty without one
  NibCode value_nib;
};

// The calibrated file (GGUF container, docs/format.md). Immutable once loaded.
struct Profile {
  static constexpr uint32_t kVersion = 1;

  std::string model_name;         // general.name of the model, for people
  std::string model_arch;         // general.architecture
  std::string model_fingerprint;  // ModelInfo::fingerprint of the model
  std::string tool_version;       // of the headq that wrote it
  std::vector<std::string> sources;  // "name size sha256" of each calibration text
  uint64_t n_tokens = 0;             // calibration tokens seen
  int n_ctx = 0;
  std::string nib;  // the codecs that key_nib and value_nib are, "nib2.5/nib2"; "" without them
  int n_basis = 0;  // vectors kept per basis, min(d_k, kMaxSideRank)
  std::vector<int> layer_ids;      // model layer index of each entry below, ascending
  std::vector<LayerShape> shapes;  // [n_layers]
  std::vector<HeadProfile> heads;  // layer-major: shapes[0].n_head_kv heads, then shapes[1]'s ...

  int find_layer(int il) const;  // entry of model layer il, or -1
  std::span<const HeadProfile> layer_heads(int entry) const;
  uint64_t payload_bytes() const;

  // Empty when the profile holds the codes of nib that these codecs read, else one line that says
  // which it holds instead.
  std::string why_lacks(const KvSpec& kv) const;

  // Throws Error: kIo when the file cannot be read, kCorrupt when it is truncated, damaged
  // (checksum) or not a profile, kUnsupported when its version is newer.
  static Profile load(const std::string& path);
  // Writes to a temporary name beside path and renames it. Throws Error(kIo); leaves nothing behind.
  void save(const std::string& path) const;
};

}  // namespace headq
