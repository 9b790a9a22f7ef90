#include "runner/metrics.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "headq/error.h"

namespace headq {
namespace {

template <typename Fn>
std::vector<double> values_of(std::span<const PairedScore> scores, const Fn& fn) {
  std::vector<double> values(scores.size());
  std::transform(scores.begin(), scores.end(), values.begin(), fn);
  return values;
}

// sqrt(mean) of non-negative values, the error carried to first order.
Estimate root_estimate(const Estimate& square) {
  const double root = std::sqrt(square.value);
  return {root, root > 0 ? 0.5 * square.error / root : 0.0};
}

// 1 - a / b of two means and its error, given a, b and the first-order change of each by position.
Estimate removed_share(double a, double b, std::span<const double> da, std::span<const double> db) {
  if (!(b > 0)) {
    return {std::numeric_limits<double>::quiet_NaN(), std::numeric_limits<double>::quiet_NaN()};
  }
  std::vector<double> change;
  for (size_t i = 0; i < da.size(); ++i) change.push_back((da[i] - a / b * db[i]) / b);
  return {1 - a / b, mean_estimate(change).error};
}

}  // namespace

LogitNorm logit_norm(std::span<const float> logits) {
  const auto top = std::max_element(logits.begin(), logits.end());
  LogitNorm norm;
  norm.max = *top;
  norm.top = static_cast<int32_t>(top - logits.begin());
  double sum = 0;
  for (float x : logits) sum += std::exp(static_cast<double>(x) - norm.max);
  norm.log_sum = std::log(sum);
  // A NaN anywhere makes the sum NaN, and so does a largest value that is infinite.
  if (!std::isfinite(norm.log_sum)) {
    throw Error(ErrorCode::kInvalidArgument, "a row of logits holds values that are not finite");
  }
  return norm;
}

double log_prob(std::span<const float> logits, const LogitNorm& norm, int32_t token) {
  return static_cast<double>(logits[static_cast<size_t>(token)]) - norm.max - norm.log_sum;
}

double kl_divergence(std::span<const float> p, const LogitNorm& p_norm, std::span<const float> q,
                     const LogitNorm& q_norm) {
  // The normalisers leave the sum: sum_i p_i (a_i - b_i) - (ln A - ln B) with a, b relative to the
  // largest logit. Equal rows give zero in every term.
  double weighted = 0;
  double total = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double a = static_cast<double>(p[i]) - p_norm.max;
    const double e = std::exp(a);
    if (e == 0) continue;  // p_i ln(p_i / q_i) -> 0
    weighted += e * (a - (static_cast<double>(q[i]) - q_norm.max));
    total += e;
  }
  return weighted / total - (p_norm.log_sum - q_norm.log_sum);
}

Estimate mean_estimate(std::span<const double> values) {
  const double n = static_cast<double>(values.size());
  double sum = 0;
  for (double x : values) sum += x;
  const double mean = sum / n;
  double squares = 0;
  for (double x : values) squares += (x - mean) * (x - mean);
  return {mean, values.size() < 2 ? std::numeric_limits<double>::quiet_NaN()
                                  : std::sqrt(squares / (n * (n - 1)))};
}

Estimate exp_estimate(const Estimate& log_estimate) {
  const double value = std::exp(log_estimate.value);
  return {value, value * log_estimate.error};
}

Estimate share_estimate(size_t n_true, size_t n) {
  const double share = static_cast<double>(n_true) / static_cast<double>(n);
  return {share, n < 2 ? std::numeric_limits<double>::quiet_NaN()
                       : std::sqrt(share * (1 - share) / static_cast<double>(n - 1))};
}

double percentile(std::span<const double> sorted, double share) {
  const double position = share * static_cast<double>(sorted.size() - 1);
  const size_t below = static_cast<size_t>(position);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double fraction = position - static_cast<double>(below);
  return (1 - fraction) * sorted[below] + fraction * sorted[above];
}

PairedScore paired_score(std::span<const float> reference, std::span<const float> candidate,
                         int32_t token) {
  const LogitNorm ref_norm = logit_norm(reference);
  const LogitNorm norm = logit_norm(candidate);
  return {.nll_reference = -log_prob(reference, ref_norm, token),
          .nll = -log_prob(candidate, norm, token),
          .kld = kl_divergence(reference, ref_norm, candidate, norm),
          .same_top = ref_norm.top == norm.top};
}

DamageRemoved damage_removed(std::span<const PairedScore> base,
                             std::span<const PairedScore> candidate) {
  if (base.empty() || base.size() != candidate.size()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} scores of a base do not pair with {} of a candidate", base.size(),
                            candidate.size()));
  }
  const auto kld = [](const PairedScore& s) { return s.kld; };
  const auto log_ratio = [](const PairedScore& s) { return s.nll - s.nll_reference; };
  DamageRemoved out;
  const std::vector<double> kld_base = values_of(base, kld), kld_own = values_of(candidate, kld);
  out.kld = removed_share(mean_estimate(kld_own).value, mean_estimate(kld_base).value, kld_own,
                          kld_base);
  std::vector<double> own = values_of(candidate, log_ratio), of_base = values_of(base, log_ratio);
  const double ratio = std::exp(mean_estimate(own).value);
  const double ratio_base = std::exp(mean_estimate(of_base).value);
  for (double& x : own) x *= ratio;
  for (double& x : of_base) x *= ratio_base;
  out.excess_ppl = removed_share(ratio - 1, ratio_base - 1, own, of_base);
  return out;
}

PairedSummary summarize(std::span<const PairedScore> scores) {
  if (scores.empty()) throw Error(ErrorCode::kInvalidArgument, "no position was scored");
  PairedSummary s;
  s.n = scores.size();
  s.ppl_reference = exp_estimate(
      mean_estimate(values_of(scores, [](const PairedScore& x) { return x.nll_reference; })));
  s.ppl =
      exp_estimate(mean_estimate(values_of(scores, [](const PairedScore& x) { return x.nll; })));
  s.ln_ppl_ratio = mean_estimate(
      values_of(scores, [](const PairedScore& x) { return x.nll - x.nll_reference; }));
  s.ppl_ratio = exp_estimate(s.ln_ppl_ratio);
  s.rms_dp = root_estimate(mean_estimate(values_of(scores, [](const PairedScore& x) {
    const double dp = std::exp(-x.nll) - std::exp(-x.nll_reference);
    return dp * dp;
  })));
  s.top1 = share_estimate(
      static_cast<size_t>(std::count_if(scores.begin(), scores.end(),
                                        [](const PairedScore& x) { return x.same_top; })),
      scores.size());
  std::vector<double> kld = values_of(scores, [](const PairedScore& x) { return x.kld; });
  s.kld = mean_estimate(kld);
  std::sort(kld.begin(), kld.end());
  s.kld_median = percentile(kld, 0.5);
  s.kld_p90 = percentile(kld, 0.9);
  s.kld_p99 = percentile(kld, 0.99);
  s.kld_max = kld.back();
  return s;
}

}  // namespace headq
