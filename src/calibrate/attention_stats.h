#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace headq {

// One query head over the rows of a chunk, as attention sees it.
struct HeadAttention {
  int n_rows = 0;
  int d = 0;
  float scale = 1.0f;    // of logits
  float softcap = 0.0f;  // 0: none
  float slope = 0.0f;    // what the mask is multiplied with (ALiBi), 0: the mask is 0 or -inf
  const float* q = nullptr;  // row i at q + i * q_stride, [d]
  size_t q_stride = 0;
  const float* k_columns = nullptr;  // [d][n_padded]: keys, transposed and padded with zeros
  size_t n_padded = 0;               // a multiple of 16
  std::span<const float> mask;       // [n_rows][n_rows] additive, empty: causal
};

// How much the softmax p_ij of query i feels errors of token j's score and value, over the tokens
// that the cache holds packed: not the first `sinks`, and not the `lag` newest, which are read dense.
struct AttentionStats {
  std::vector<float> query_fisher;  // [n_rows] sum_j p_ij (1 - p_ij): 0 for a query that is decided
  std::vector<float> key_weight;    // [n_rows] sum_i p_ij (1 - p_ij)
  std::vector<float> value_weight;  // [n_rows] sum_i p_ij^2

  // Half of the queries take part, four in a row and the next four not; the others have weight 0.
  // Cost: O(n_rows^2 d).
  AttentionStats(const HeadAttention& head, int sinks, int lag);
};

}  // namespace headq
