#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "diagnose/head_sample.h"
#include "diagnose/stats.h"

namespace headq {

// Experiment 3: one vector, a multiple of the head's mean key, is added to the keys of all tokens.
// Attention over dense keys does not change; what does a codec make of the shifted keys?

inline constexpr std::array<double, 6> kShiftMultiples = {-1, 0, 1, 2, 4, 8};

// A codec under the intervention. "c" codecs subtract the mean of the shifted keys.
std::vector<std::string> null_space_codecs();

// One KV head.
struct NullSpaceHead {
  std::vector<double> dense_kl;         // [multiples] largest over queries, dense keys shifted
  std::vector<std::vector<double>> kl;  // [codecs][multiples] mean over queries
  std::vector<std::vector<double>> mse;
};

NullSpaceHead null_space_head(const HeadSample& sample);

struct NullSpaceRow {
  std::string codec;
  double multiple = 0;
  MeanError kl;  // over KV heads
  MeanError mse;
  MeanError kl_ratio;  // geometric mean over heads of KL over that of the keys as they are
};

struct NullSpace {
  size_t n_heads = 0;
  std::vector<double> dense_kl;    // [multiples] the largest over heads and queries
  std::vector<NullSpaceRow> rows;  // codec-major
};

NullSpace null_space(std::span<const NullSpaceHead> heads);

// sample with shift [d_k] added to each of its keys and to the mean key of its profile.
HeadSample shifted(const HeadSample& sample, std::span<const float> shift);

}  // namespace headq
