#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace headq {

// Measures of one model's next-token distributions, and of two models' against each other, as pure
// functions over rows of logits. Everything accumulates in double; docs/measuring.md has the
// formulas.

// The normaliser of one row of logits and its most probable token.
struct LogitNorm {
  double max = 0;      // largest logit
  double log_sum = 0;  // ln sum_i exp(logit_i - max)
  int32_t top = 0;     // index of the largest logit, the first one of equals
};

// logits: [n_vocab], -inf allowed, n_vocab >= 1. Throws Error(kInvalidArgument) when the row has a
// NaN, +inf, or nothing but -inf.
LogitNorm logit_norm(std::span<const float> logits);

// ln p(token) of the softmax of logits; norm is logit_norm(logits).
double log_prob(std::span<const float> logits, const LogitNorm& norm, int32_t token);

// D(p || q) = sum_i p_i (ln p_i - ln q_i) in nats. Both rows have [n_vocab] logits and their norms.
// Exactly 0 for equal rows. Rounding may leave -1e-15 where the true value is 0; +inf when q rules
// out a token that p allows.
double kl_divergence(std::span<const float> p, const LogitNorm& p_norm, std::span<const float> q,
                     const LogitNorm& q_norm);

// A mean and its standard error; the error is NaN when fewer than two values were seen.
struct Estimate {
  double value = 0;
  double error = 0;
};

// Mean of independent values; the error is sqrt(sum (x - mean)^2 / (n (n - 1))).
Estimate mean_estimate(std::span<const double> values);

// exp(mean) with the error carried to first order: exp(mean) * error(mean).
Estimate exp_estimate(const Estimate& log_estimate);

// Share of n_true among n, its error that of a binomial: sqrt(f (1 - f) / (n - 1)).
Estimate share_estimate(size_t n_true, size_t n);

// Value below which a share of the values lies, linear between order statistics. sorted: ascending,
// not empty; share in [0, 1].
double percentile(std::span<const double> sorted, double share);

// One scored position of a candidate against the reference.
struct PairedScore {
  double nll_reference = 0;  // -ln p_reference(true next token)
  double nll = 0;            // -ln p_candidate(true next token)
  double kld = 0;            // D(reference || candidate)
  bool same_top = false;     // both have the same most probable token
};

// reference, candidate: [n_vocab] logits that predict token.
PairedScore paired_score(std::span<const float> reference, std::span<const float> candidate,
                         int32_t token);

// What a change to a cache takes away of the damage of the cache it starts from.
struct DamageRemoved {
  Estimate excess_ppl;  // 1 - (PPL - PPL_reference) / (PPL_base - PPL_reference)
  Estimate kld;         // 1 - KLD / KLD_base
};

// base, candidate: scores of the same positions against the same reference. Errors are carried to
// first order from the paired positions. Negative where the candidate does more harm than its base;
// NaN where the base does none. Throws Error(kInvalidArgument) when sizes differ or are 0.
DamageRemoved damage_removed(std::span<const PairedScore> base,
                             std::span<const PairedScore> candidate);

// What a run of paired scores says.
struct PairedSummary {
  size_t n = 0;
  Estimate ppl_reference;
  Estimate ppl;
  Estimate ln_ppl_ratio;  // ln(PPL / PPL_reference); the error is that of the paired differences
  Estimate ppl_ratio;
  Estimate kld;
  Estimate top1;    // share of positions with the same most probable token
  Estimate rms_dp;  // root of the mean squared change of the true token's probability
  double kld_median = 0;
  double kld_p90 = 0;
  double kld_p99 = 0;
  double kld_max = 0;
};

// Throws Error(kInvalidArgument) when scores is empty.
PairedSummary summarize(std::span<const PairedScore> scores);

}  // namespace headq
