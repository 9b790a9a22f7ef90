#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

namespace headq {

// Statistics of the experiments. What has no value (a rank correlation of equal values, the error
// of one value) is NaN. Everything random is a function of the seed alone.

inline constexpr double kNoValue = std::numeric_limits<double>::quiet_NaN();

// A mean over n values with its standard error sqrt(sum (x - mean)^2 / (n (n - 1))).
struct MeanError {
  double value = kNoValue;
  double error = kNoValue;
  size_t n = 0;
};

MeanError mean_error(std::span<const double> values);

// exp of a mean of logarithms, the error carried to first order.
MeanError exp_of(const MeanError& log_mean);

// A figure with the interval that holds 95 % of its bootstrap replicates.
struct Interval {
  double value = kNoValue;
  double low = kNoValue;
  double high = kNoValue;
};

// Ranks 1..n; equal values share the mean of their ranks. NaN sorts behind everything.
std::vector<double> ranks(std::span<const double> values);

// Pearson's correlation; NaN when either side does not vary or fewer than two pairs are there.
double pearson(std::span<const double> x, std::span<const double> y);

// Spearman's rank correlation: Pearson's of the ranks, so ties count as they should.
double spearman(std::span<const double> x, std::span<const double> y);

// How replicates are drawn.
struct BootstrapOptions {
  int n_replicates = 500;
  uint64_t seed = 1;
  int n_threads = 1;  // that compute replicates; the figures do not depend on it
};

// n indices below n with replacement; a function of n, seed and replicate.
std::vector<size_t> resample(size_t n, uint64_t seed, int replicate);

// The value and the central 95 % of its replicates (linear between order statistics, NaN replicates
// left out).
Interval interval_of(double value, std::vector<double> replicates);

// Bootstrap interval of a mean.
Interval mean_interval(std::span<const double> values, const BootstrapOptions& options);

// Observations that belong together, such as all cells of one head: a cluster is drawn whole.
struct Clusters {
  // cluster: [n] any labels, one for each observation.
  explicit Clusters(std::span<const int> cluster);

  std::vector<std::vector<size_t>> members;  // observations of each cluster
};

// statistic(indices) over observations given by index, with repeats; the interval comes from
// drawing whole clusters with replacement. The statistic may return several figures; they are
// computed on the same draws, so the interval of a difference is that of paired values. It runs on
// several threads at once and must not throw.
std::vector<Interval> cluster_bootstrap(
    const Clusters& clusters, const BootstrapOptions& options,
    const std::function<std::vector<double>(std::span<const size_t>)>& statistic);

// The |rank correlation| that 95 % of random pairings of x and y stay below: what is there by
// chance alone. Clusters are not kept together, so it is a floor.
double chance_correlation(std::span<const double> x, std::span<const double> y,
                          const BootstrapOptions& options);

}  // namespace headq
