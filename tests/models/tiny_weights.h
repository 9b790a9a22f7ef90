#pragma once

#include <vector>

#include "models/random.h"

namespace headq::testing {

// How a family rotates keys and queries.
enum class RopePairs {
  kNone,
  kAdjacent,  // channels 2i and 2i + 1
  kHalves,    // channels i and i + n_rot / 2
};

// What the attention projections of one layer must fit.
struct AttentionShape {
  int n_embd = 0;
  int n_head = 0;
  int n_head_kv = 0;
  int head_dim = 0;
  int n_rot = 0;  // rotated channels, the first ones
  RopePairs pairs = RopePairs::kNone;
  double scale = 0.0;      // logits are q·k * scale
  double sharpness = 0.0;  // wanted standard deviation of the logits
  bool qk_norm = false;    // queries and keys are RMS-normalised per head after projection
};

// Row-major [rows][n_embd] projections for inputs of unit RMS.
struct AttentionWeights {
  std::vector<float> q, k, v;                 // [n_head * d], [n_head_kv * d], [n_head_kv * d]
  std::vector<float> q_bias, k_bias, v_bias;  // small for q and v; keys get a clear mean
  std::vector<float> q_norm, k_norm;          // [d] gains that follow the RMS norm (qk_norm)
};

// Queries lie near a subspace of 3 dimensions per KV head that is strongest where rotation is
// slowest; one key channel in 16 is an outlier (3 times the others).
AttentionWeights make_attention(Random& random, const AttentionShape& shape);

// [n_out][n_in] Gaussian weights that map unit RMS to RMS gain.
std::vector<float> make_linear(Random& random, int n_out, int n_in, double gain);

// Norm gains around center.
std::vector<float> make_norm(Random& random, int n, double center);

// [n_vocab][n_embd], rows of RMS about rms that share a common component.
std::vector<float> make_embedding(Random& random, int n_vocab, int n_embd, double rms);

// a, b, and c one after the other.
std::vector<float> concat(const std::vector<float>& a, const std::vector<float>& b,
                          const std::vector<float>& c);

}  // namespace headq::testing
