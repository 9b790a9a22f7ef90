#pragma once

#include <span>
#include <vector>

namespace headq {

// How much attention each token of a chunk gets: the sum of p^2 over queries, from those that read its
// block dense (what a cache knows when it codes the block) and from those that read it packed.
struct PaidAttention {
  std::vector<float> early;  // [n_tokens]
  std::vector<float> later;  // [n_tokens]
};

// All queries of one head over a chunk.
struct PayingHead {
  int n_tokens = 0;
  int d = 0;
  float scale = 1;
  float softcap = 0;  // 0: none
  int window = 32;    // a block is read packed from the query on that is so far behind its last token
  std::vector<float> q;        // [n_tokens][d]
  std::span<const float> k;    // [n_tokens][d]
  std::span<const int> first;  // [n_tokens] the first token that a query sees
};

// Adds what one head pays; empty sums become [n_tokens]. Cost: O(n_tokens^2 d).
void add_paid_attention(const PayingHead& head, PaidAttention& paid);

}  // namespace headq
