#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "diagnose/reading.h"
#include "diagnose/stats.h"

namespace headq {

// Experiment 7: values at 2 bits and half a bit more. Does it help to give the half bit to the tokens
// that were attended to most until their block is coded, instead of to all alike?

enum class ValuePolicy {
  kBase,     // kivi2: without the half bit
  kUniform,  // the half bit to all tokens: grids of 6 steps, log2(6) bits as if these could be packed
  kRandom,   // 4 bits for a quarter of the tokens, any (kivi2+a2@random)
  kPaid,     // those that most squared attention was paid to before (kivi2+a2)
  kOracle,   // those to which most will be paid after
};
inline constexpr std::array<ValuePolicy, 5> kValuePolicies = {
    ValuePolicy::kBase, ValuePolicy::kUniform, ValuePolicy::kRandom, ValuePolicy::kPaid,
    ValuePolicy::kOracle};

// "base", "uniform", "random", "paid", "oracle".
std::string to_string(ValuePolicy policy);

// One KV head through one policy.
struct PolicyFigures {
  double bits = 0;                  // per element of a packed block
  double mse = 0, a2_error = 0, output_error = 0;  // means over rows and queries (ValueReading)
  double captured = kNoValue;  // of the squared attention paid later, the share of the refined tokens
};

struct A2PolicyHead {
  std::array<PolicyFigures, kValuePolicies.size()> policies;
};

A2PolicyHead a2_policy_head(const DenseAttention& dense);

struct A2PolicyRow {
  ValuePolicy policy = ValuePolicy::kBase;
  double bits = 0;  // mean over heads
  MeanError mse, a2_error, output_error;  // over KV heads
  // Geometric means over heads of the error over that of the base; bootstrap over heads.
  Interval a2_ratio, output_ratio;
  Interval captured;  // mean over heads
};

struct A2Policy {
  size_t n_heads = 0;
  std::vector<A2PolicyRow> rows;  // [kValuePolicies]
  // kPaid beside another policy of its bits.
  struct Comparison {
    ValuePolicy other = ValuePolicy::kUniform;
    Interval ratio;  // geometric mean over heads of its output error over the other's
    MeanError wins;  // share of heads where it is the lower one
  };
  std::vector<Comparison> paid_over;  // uniform, random, oracle
};

A2Policy a2_policy(std::span<const A2PolicyHead> heads, const BootstrapOptions& options);

}  // namespace headq
