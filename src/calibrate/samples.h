#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/half.h"
#include "core/random.h"

namespace headq {

// Keys and values of some tokens of one head, with the attention that was paid to them.
class TokenSamples {
 public:
  TokenSamples(int d_k, int d_v, size_t capacity);

  // slot: below capacity, and at most the number of slots set so far.
  void set(size_t slot, const float* k, const float* v, float key_weight, float value_weight);

  size_t n() const { return key_weight_.size(); }
  int d_k() const { return static_cast<int>(d_k_); }
  int d_v() const { return static_cast<int>(d_v_); }
  void key(size_t i, float* row) const;    // [d_k]
  void value(size_t i, float* row) const;  // [d_v]
  const std::vector<float>& key_weight() const { return key_weight_; }      // sum_i p_ij (1 - p_ij)
  const std::vector<float>& value_weight() const { return value_weight_; }  // sum_i p_ij^2

 private:
  size_t d_k_, d_v_;
  std::vector<Half> k_, v_;
  std::vector<float> key_weight_, value_weight_;
};

struct KeptToken {
  size_t row = 0;   // of the new tokens
  size_t slot = 0;  // where it goes
};

// Reservoir sampling (Vitter 1985, algorithm R): which of n_new tokens behind n_before earlier ones
// are kept, so that each token so far has the same chance of one of n_slots.
std::vector<KeptToken> choose_tokens(uint64_t n_before, size_t n_new, size_t n_slots, Random& random);

}  // namespace headq
