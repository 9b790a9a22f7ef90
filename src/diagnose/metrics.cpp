#include "diagnose/metrics.h"

#include <algorithm>
#include <cmath>

namespace headq {
namespace {

// Above this, exp(x) - 1 is computed relative to the largest delta, so that nothing overflows.
constexpr double kLargeDelta = 30.0;

}  // namespace

void softmax(std::span<const double> scores, std::span<double> p) {
  const double max = *std::max_element(scores.begin(), scores.end());
  double sum = 0;
  for (size_t j = 0; j < scores.size(); ++j) sum += p[j] = std::exp(scores[j] - max);
  for (double& x : p) x /= sum;
}

double entropy(std::span<const double> p) {
  double sum = 0;
  for (double x : p) {
    if (x > 0) sum -= x * std::log(x);
  }
  return sum;
}

size_t top_index(std::span<const double> x) {
  return static_cast<size_t>(std::max_element(x.begin(), x.end()) - x.begin());
}

ScoreDamage score_damage(std::span<const double> p, std::span<const double> delta) {
  const double n = static_cast<double>(delta.size());
  // Relative to the first delta, so that a shift that all tokens share leaves exact zeros.
  const double origin = delta[0];
  double mean = 0, square = 0, p_sum = 0, p_mean = 0, largest = 0;
  for (size_t j = 0; j < delta.size(); ++j) {
    const double d = delta[j] - origin;
    mean += d;
    square += d * d;
    p_sum += p[j];
    p_mean += p[j] * d;
    largest = std::max(largest, d);
  }
  mean /= n;
  p_mean /= p_sum;
  largest -= p_mean;

  // Around p's own mean the first-order term of the divergence, sum p delta, is gone, and what is
  // summed below is of second order: no digits cancel.
  double variance = 0, excess = 0;
  for (size_t j = 0; j < delta.size(); ++j) {
    const double e = delta[j] - origin - p_mean;
    variance += p[j] * e * e;
    excess += p[j] * (largest > kLargeDelta ? std::exp(e - largest) : std::expm1(e));
  }
  const double log_mean_exp =
      largest > kLargeDelta ? largest + std::log(excess / p_sum) : std::log1p(excess / p_sum);
  return {.score_error = std::max(square / n - mean * mean, 0.0),
          .fisher = 0.5 * variance / p_sum,
          .kl = log_mean_exp};
}

void reweigh(std::span<const double> p, std::span<const double> delta, std::span<double> p_coded) {
  const double largest = *std::max_element(delta.begin(), delta.end());
  double p_sum = 0, sum = 0;
  for (size_t j = 0; j < p.size(); ++j) {
    p_sum += p[j];
    sum += p_coded[j] = p[j] * std::exp(delta[j] - largest);
  }
  // Rounding of p's own sum is kept, so that a shared delta leaves p itself.
  const double factor = p_sum / sum;
  for (double& x : p_coded) x *= factor;
}

}  // namespace headq
