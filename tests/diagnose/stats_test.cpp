#include "diagnose/stats.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>
#include <vector>

namespace headq {
namespace {

using Doubles = std::vector<double>;

TEST(Stats, MeanAndItsStandardError) {
  const MeanError m = mean_error(Doubles{1, 2, 3, 6});
  EXPECT_EQ(m.n, 4u);
  EXPECT_DOUBLE_EQ(m.value, 3.0);
  EXPECT_DOUBLE_EQ(m.error, std::sqrt(14.0 / 12.0));  // squares 4 + 1 + 0 + 9
  EXPECT_TRUE(std::isnan(mean_error(Doubles{5}).error));
  EXPECT_TRUE(std::isnan(mean_error(Doubles{}).value));
  EXPECT_DOUBLE_EQ(exp_of({std::log(2.0), 0.1, 3}).value, 2.0);
  EXPECT_DOUBLE_EQ(exp_of({std::log(2.0), 0.1, 3}).error, 0.2);
}

TEST(Stats, EqualValuesShareTheirRanks) {
  EXPECT_EQ(ranks(Doubles{10, 20, 20, 5, 20}), (Doubles{2, 4, 4, 1, 4}));
  EXPECT_EQ(ranks(Doubles{7, 7}), (Doubles{1.5, 1.5}));
  EXPECT_EQ(ranks(Doubles{}), Doubles{});
}

TEST(Stats, SpearmanWithTiesByHand) {
  // Ranks of x: 1, 2.5, 2.5, 4; of y: 1, 2, 3.5, 3.5. Around 2.5: products 2.25 + 0 + 0 + 1.5;
  // squares 2.25 + 2.25 and 2.25 + 0.25 + 1 + 1.
  const double wanted = 3.75 / std::sqrt(4.5 * 4.5);
  EXPECT_NEAR(spearman(Doubles{1, 2, 2, 3}, Doubles{5, 6, 9, 9}), wanted, 1e-15);
  // Without ties 1 - 6 sum d^2 / (n (n^2 - 1)): d = 1, 1, 1, 1, 0 gives 1 - 24 / 120.
  EXPECT_NEAR(spearman(Doubles{1, 2, 3, 4, 5}, Doubles{2, 1, 4, 3, 5}), 0.8, 1e-15);
}

TEST(Stats, SpearmanSeesOrderAlone) {
  const Doubles x = {0.1, 3, -2, 8, 5};
  Doubles y;
  for (double v : x) y.push_back(std::exp(v));
  EXPECT_DOUBLE_EQ(spearman(x, y), 1.0);
  for (double& v : y) v = -v;
  EXPECT_DOUBLE_EQ(spearman(x, y), -1.0);
}

TEST(Stats, WhatDoesNotVaryHasNoCorrelation) {
  EXPECT_TRUE(std::isnan(spearman(Doubles{1, 1, 1}, Doubles{1, 2, 3})));
  EXPECT_TRUE(std::isnan(spearman(Doubles{1}, Doubles{1})));
}

TEST(Stats, ResamplingIsAFunctionOfItsSeed) {
  const auto draws = [](uint64_t seed) {
    std::vector<size_t> all;
    for (int replicate = 0; replicate < 20; ++replicate) {
      const std::vector<size_t> drawn = resample(7, seed, replicate);
      all.insert(all.end(), drawn.begin(), drawn.end());
    }
    return all;
  };
  EXPECT_EQ(draws(1), draws(1));
  EXPECT_NE(draws(1), draws(2));
  const std::vector<size_t> all = draws(1);
  EXPECT_EQ(all.size(), 140u);
  EXPECT_LT(*std::max_element(all.begin(), all.end()), 7u);
  EXPECT_NE(resample(7, 1, 0), resample(7, 1, 1));
  for (size_t i = 0; i < 7; ++i) {
    EXPECT_NE(std::count(all.begin(), all.end(), i), 0) << i;
  }
}

TEST(Stats, TheIntervalOfAMeanIsThatOfTheTextbook) {
  std::mt19937_64 random(5);
  std::normal_distribution<double> draw(10.0, 2.0);
  Doubles values(400);
  for (double& x : values) x = draw(random);
  const MeanError mean = mean_error(values);
  const Interval interval = mean_interval(values, {.n_replicates = 2000});
  EXPECT_DOUBLE_EQ(interval.value, mean.value);
  EXPECT_NEAR(interval.low, mean.value - 1.96 * mean.error, 0.15 * mean.error);
  EXPECT_NEAR(interval.high, mean.value + 1.96 * mean.error, 0.15 * mean.error);
}

TEST(Stats, ClustersAreDrawnWhole) {
  // 40 clusters of 25 equal values: as wide as a mean of 40, five times that of a mean of 1000.
  std::mt19937_64 random(6);
  std::normal_distribution<double> draw;
  Doubles centres(40), values;
  std::vector<int> labels;
  for (size_t c = 0; c < centres.size(); ++c) {
    centres[c] = draw(random);
    values.insert(values.end(), 25, centres[c]);
    labels.insert(labels.end(), 25, static_cast<int>(c) * 3);
  }
  const auto mean_of = [&](std::span<const size_t> drawn) {
    double sum = 0;
    for (size_t i : drawn) sum += values[i];
    return Doubles{sum / static_cast<double>(drawn.size())};
  };
  const Interval clustered =
      cluster_bootstrap(Clusters(labels), {.n_replicates = 2000}, mean_of).front();
  const MeanError expected = mean_error(centres);
  EXPECT_NEAR(clustered.value, expected.value, 1e-12);
  EXPECT_NEAR(clustered.high - clustered.low, 2 * 1.96 * expected.error, 0.2 * expected.error);
}

TEST(Stats, ADifferenceIsMeasuredOnTheSameDraws) {
  // The second figure is the first plus 1 on every draw, so their difference has no width.
  const std::vector<int> labels = {0, 1, 2, 3, 4, 5};
  const auto statistic = [](std::span<const size_t> drawn) {
    const double sum = static_cast<double>(std::accumulate(drawn.begin(), drawn.end(), size_t{0}));
    return Doubles{sum, sum + 1, 1};
  };
  const auto found = cluster_bootstrap(Clusters(labels), {.n_replicates = 100}, statistic);
  EXPECT_LT(found[0].low, found[0].high);
  EXPECT_EQ(found[2].low, 1.0);
  EXPECT_EQ(found[2].high, 1.0);
}

TEST(Stats, ChanceCorrelationGoesWithTheRootOfTheNumber) {
  Doubles x(900), y(900);
  std::iota(x.begin(), x.end(), 0.0);
  y = x;  // random pairings do not care how the given one is
  // 95 % of |rho| lie below 1.96 / sqrt(n - 1).
  EXPECT_NEAR(chance_correlation(x, y, {.n_replicates = 1000}), 1.96 / std::sqrt(899.0), 0.008);
}

}  // namespace
}  // namespace headq
