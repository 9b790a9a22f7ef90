#pragma once

#include <string>
#include <vector>

#include "core/half.h"
#include "headq/profile.h"

namespace headq::bench {

// What an attention op reads and asks: keys and values of one layer whose channels are correlated
// and unequal, as a model's are, and queries whose scores have a standard deviation of 2 nats. The
// same numbers on every machine.
struct Workload {
  LayerShape shape;
  int n_tokens = 0;
  std::vector<float> keys;    // [n_tokens][n_head_kv][d_k]
  std::vector<float> values;  // [n_tokens][n_head_kv][d_v]

  Workload(const LayerShape& shape, int n_tokens, uint64_t seed);

  size_t key_row() const { return static_cast<size_t>(shape.n_head_kv * shape.d_k); }
  size_t value_row() const { return static_cast<size_t>(shape.n_head_kv * shape.d_v); }
  float scale() const;  // of logits

  // [n_rows][n_head_kv * group][d_k]
  std::vector<float> queries(int n_rows, int group, uint64_t seed) const;
};

// Row i of n_rows sees the cells 0 .. n_kv - n_rows + i: [n_rows][n_kv].
std::vector<Half> causal_mask(int n_rows, int n_kv);

// A profile of layer 0 whose bases and codes are fitted to another draw of the same distribution.
// kv: "K/V"; sides that are nib get codes.
Profile fitted_profile(const LayerShape& shape, const std::string& kv);

}  // namespace headq::bench
