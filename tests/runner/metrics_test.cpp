#include "runner/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "headq/error.h"

namespace headq {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();
constexpr float kNan = std::numeric_limits<float>::quiet_NaN();

double kld(const std::vector<float>& p, const std::vector<float>& q) {
  return kl_divergence(p, logit_norm(p), q, logit_norm(q));
}

std::vector<float> random_row(size_t n, double deviation, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::normal_distribution<double> normal(0, deviation);
  std::vector<float> row(n);
  for (float& x : row) x = static_cast<float>(normal(rng));
  return row;
}

// Probabilities by the definition, without any of the tricks of the code under test.
std::vector<long double> naive_softmax(const std::vector<float>& logits) {
  std::vector<long double> p(logits.size());
  long double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) sum += p[i] = std::exp(static_cast<long double>(logits[i]));
  for (long double& x : p) x /= sum;
  return p;
}

TEST(Metrics, TwoTokenDistributionsHaveTheirClosedForm) {
  const std::vector<float> p = {0.0f, std::log(3.0f)};  // 1/4, 3/4
  const std::vector<float> q = {0.0f, 0.0f};            // 1/2, 1/2
  EXPECT_NEAR(log_prob(p, logit_norm(p), 0), std::log(0.25), 1e-7);
  EXPECT_NEAR(log_prob(p, logit_norm(p), 1), std::log(0.75), 1e-7);
  EXPECT_NEAR(kld(p, q), 0.25 * std::log(0.5) + 0.75 * std::log(1.5), 1e-7);
  EXPECT_NEAR(kld(q, p), 0.5 * std::log(2.0) + 0.5 * std::log(2.0 / 3.0), 1e-7);
}

TEST(Metrics, AgreeWithTheDefinitionOnRandomRows) {
  for (size_t n : {1, 2, 3, 1000}) {
    const auto p = random_row(n, 3, n);
    const auto q = random_row(n, 3, n + 7);
    const auto pp = naive_softmax(p);
    const auto qq = naive_softmax(q);
    long double expected = 0;
    for (size_t i = 0; i < n; ++i) expected += pp[i] * std::log(pp[i] / qq[i]);
    EXPECT_NEAR(kld(p, q), static_cast<double>(expected), 1e-12) << n << " tokens";
    const auto token = static_cast<int32_t>(n / 2);
    EXPECT_NEAR(log_prob(p, logit_norm(p), token), static_cast<double>(std::log(pp[n / 2])), 1e-12);
  }
}

TEST(Metrics, EqualRowsDivergeByExactlyZero) {
  for (double deviation : {0.0, 1.0, 30.0}) {
    const auto row = random_row(5000, deviation, 11);
    EXPECT_EQ(kld(row, row), 0.0) << "deviation " << deviation;
  }
}

TEST(Metrics, AShiftOfAllLogitsChangesNothing) {
  // Eighths are exact in f32 before and after the shift, so the result is too.
  std::vector<float> p = random_row(300, 2, 5);
  std::vector<float> q = random_row(300, 2, 6);
  for (std::vector<float>* row : {&p, &q}) {
    for (float& x : *row) x = std::round(x * 8) / 8;
  }
  std::vector<float> shifted = q;
  for (float& x : shifted) x += 64;
  EXPECT_EQ(kld(p, shifted), kld(p, q));
  EXPECT_EQ(log_prob(shifted, logit_norm(shifted), 17), log_prob(q, logit_norm(q), 17));
  shifted[17] += 0.125f;
  EXPECT_NE(kld(p, shifted), kld(p, q));
}

TEST(Metrics, HugeLogitsDoNotOverflow) {
  const std::vector<float> p = {30000.0f, 29999.0f};
  EXPECT_NEAR(log_prob(p, logit_norm(p), 1), -1 - std::log1p(std::exp(-1.0)), 1e-12);
}

TEST(Metrics, ATokenRuledOutByBothCostsNothing) {
  const std::vector<float> p = {0.0f, 1.0f, -kInf};
  const std::vector<float> q = {0.5f, 0.0f, -kInf};
  EXPECT_EQ(kld(p, q), kld({0.0f, 1.0f}, {0.5f, 0.0f}));
}

TEST(Metrics, ATokenRuledOutByTheCandidateAloneIsInfinitelyBad) {
  EXPECT_EQ(kld({0.0f, 1.0f}, {0.0f, -kInf}), std::numeric_limits<double>::infinity());
}

TEST(Metrics, RowsThatAreNotFiniteAreRefused) {
  for (const std::vector<float>& row : std::vector<std::vector<float>>{
           {kNan, 0, 1}, {0, kNan, 1}, {0, 1, kNan}, {0, kInf, 1}, {-kInf, -kInf}}) {
    EXPECT_THROW(logit_norm(row), Error);
  }
}

TEST(Metrics, TheFirstOfEqualLogitsIsTheTop) {
  EXPECT_EQ(logit_norm(std::vector<float>{1, 5, 5, 2}).top, 1);
}

TEST(Metrics, MeanAndItsErrorAreThoseOfASmallSample) {
  const Estimate e = mean_estimate(std::vector<double>{1, 2, 3, 4});
  EXPECT_DOUBLE_EQ(e.value, 2.5);
  EXPECT_DOUBLE_EQ(e.error, std::sqrt(5.0 / (4 * 3)));
}

TEST(Metrics, OneValueHasNoError) {
  EXPECT_TRUE(std::isnan(mean_estimate(std::vector<double>{2}).error));
  EXPECT_TRUE(std::isnan(share_estimate(1, 1).error));
}

TEST(Metrics, AMeanFarFromZeroKeepsTheErrorOfItsSpread) {
  const Estimate e = mean_estimate(std::vector<double>{1e9 + 1, 1e9 + 2, 1e9 + 3, 1e9 + 4});
  EXPECT_DOUBLE_EQ(e.error, std::sqrt(5.0 / (4 * 3)));
}

TEST(Metrics, ShareHasTheErrorOfABinomial) {
  const Estimate e = share_estimate(3, 4);
  EXPECT_DOUBLE_EQ(e.value, 0.75);
  EXPECT_DOUBLE_EQ(e.error, std::sqrt(0.75 * 0.25 / 3));
}

TEST(Metrics, PercentilesAreLinearBetweenOrderStatistics) {
  const std::vector<double> sorted = {0, 10, 20, 30, 40};
  EXPECT_DOUBLE_EQ(percentile(sorted, 0), 0);
  EXPECT_DOUBLE_EQ(percentile(sorted, 0.5), 20);
  EXPECT_DOUBLE_EQ(percentile(sorted, 0.9), 36);
  EXPECT_DOUBLE_EQ(percentile(sorted, 1), 40);
}

std::vector<PairedScore> correlated_scores(size_t n) {
  std::mt19937_64 rng(3);
  std::normal_distribution<double> normal(0, 1);
  std::vector<PairedScore> scores(n);
  for (PairedScore& s : scores) {
    s.nll_reference = 3 + normal(rng);
    s.nll = s.nll_reference + 0.1 + 0.2 * normal(rng);
    s.kld = std::abs(normal(rng));
  }
  return scores;
}

TEST(Summary, ErrorOfTheRatioTakesTheCovarianceIntoAccount) {
  const auto scores = correlated_scores(500);
  const double n = static_cast<double>(scores.size());
  double a = 0, b = 0, aa = 0, bb = 0, ab = 0;
  for (const PairedScore& s : scores) {
    a += s.nll / n;
    b += s.nll_reference / n;
  }
  for (const PairedScore& s : scores) {
    aa += (s.nll - a) * (s.nll - a);
    bb += (s.nll_reference - b) * (s.nll_reference - b);
    ab += (s.nll - a) * (s.nll_reference - b);
  }
  const PairedSummary summary = summarize(scores);
  const double expected = std::sqrt((aa + bb - 2 * ab) / (n * (n - 1)));
  EXPECT_NEAR(summary.ln_ppl_ratio.error, expected, 1e-12);
  EXPECT_NEAR(summary.ln_ppl_ratio.value, a - b, 1e-12);
  EXPECT_NEAR(summary.ppl_ratio.value, summary.ppl.value / summary.ppl_reference.value, 1e-12);
  EXPECT_NEAR(summary.ppl_ratio.error, summary.ppl_ratio.value * expected, 1e-12);
  // Taken as independent, the two perplexities would give several times the error.
  EXPECT_GT(std::sqrt((aa + bb) / (n * (n - 1))), 4 * summary.ln_ppl_ratio.error);
}

TEST(Summary, PerplexityIsTheExponentialOfTheMean) {
  const std::vector<PairedScore> scores = {{.nll_reference = 1, .nll = 1.5, .kld = 0.25},
                                           {.nll_reference = 2, .nll = 2.5, .kld = 0.75}};
  const PairedSummary s = summarize(scores);
  EXPECT_EQ(s.n, 2u);
  EXPECT_DOUBLE_EQ(s.ppl_reference.value, std::exp(1.5));
  EXPECT_DOUBLE_EQ(s.ppl.value, std::exp(2.0));
  EXPECT_DOUBLE_EQ(s.ppl.error, std::exp(2.0) * 0.5);
  EXPECT_DOUBLE_EQ(s.ppl_ratio.value, std::exp(0.5));
  EXPECT_DOUBLE_EQ(s.ppl_ratio.error, 0);
  EXPECT_DOUBLE_EQ(s.kld.value, 0.5);
  EXPECT_DOUBLE_EQ(s.kld_median, 0.5);
  EXPECT_DOUBLE_EQ(s.kld_max, 0.75);
}

TEST(Summary, ChangeOfProbabilityIsARootMeanSquare) {
  const std::vector<PairedScore> scores = {
      {.nll_reference = -std::log(0.5), .nll = -std::log(0.8)},
      {.nll_reference = -std::log(0.5), .nll = -std::log(0.1)}};
  EXPECT_NEAR(summarize(scores).rms_dp.value, std::sqrt((0.09 + 0.16) / 2), 1e-12);
}

TEST(Summary, NothingScoredIsRefused) {
  EXPECT_THROW(summarize(std::vector<PairedScore>{}), Error);
}

// A base of correlated_scores() and a candidate that does a third of its harm, give or take.
std::pair<std::vector<PairedScore>, std::vector<PairedScore>> base_and_candidate(size_t n) {
  auto base = correlated_scores(n);
  std::mt19937_64 random(3);
  std::normal_distribution<double> normal;
  auto candidate = base;
  for (size_t i = 0; i < n; ++i) {
    const double harm = 0.3 + 0.2 * normal(random);
    base[i].nll = base[i].nll_reference + harm;
    base[i].kld = harm * harm;
    candidate[i].nll = candidate[i].nll_reference + harm / 3 + 0.02 * normal(random);
    candidate[i].kld = harm * harm / 9 + 0.01 * std::fabs(normal(random));
  }
  return {base, candidate};
}

struct Shares {
  double excess_ppl = 0, kld = 0;
};

// The definitions, from perplexities.
Shares shares_without(const std::vector<PairedScore>& base,
                      const std::vector<PairedScore>& candidate, size_t left_out) {
  double dense = 0, b = 0, c = 0, kld_b = 0, kld_c = 0, n = 0;
  for (size_t i = 0; i < base.size(); ++i) {
    if (i == left_out) continue;
    dense += base[i].nll_reference;
    b += base[i].nll;
    c += candidate[i].nll;
    kld_b += base[i].kld;
    kld_c += candidate[i].kld;
    ++n;
  }
  const double ppl = std::exp(dense / n);
  return {1 - (std::exp(c / n) - ppl) / (std::exp(b / n) - ppl), 1 - kld_c / kld_b};
}

TEST(DamageRemoved, IsTheDefinitionWithTheErrorOfAJackknife) {
  const size_t n = 400;
  const auto [base, candidate] = base_and_candidate(n);
  const DamageRemoved found = damage_removed(base, candidate);
  const Shares whole = shares_without(base, candidate, n);
  EXPECT_NEAR(found.excess_ppl.value, whole.excess_ppl, 1e-12);
  EXPECT_NEAR(found.kld.value, whole.kld, 1e-12);
  EXPECT_NEAR(whole.excess_ppl, 0.69, 0.05);  // two thirds, and a little more: exp is convex
  double ppl = 0, kld = 0;
  for (size_t i = 0; i < n; ++i) {
    const Shares one = shares_without(base, candidate, i);
    ppl += std::pow(one.excess_ppl - whole.excess_ppl, 2);
    kld += std::pow(one.kld - whole.kld, 2);
  }
  const double scale = (n - 1.0) / n;
  EXPECT_NEAR(found.excess_ppl.error / std::sqrt(scale * ppl), 1.0, 0.02);
  EXPECT_NEAR(found.kld.error / std::sqrt(scale * kld), 1.0, 0.02);
}

TEST(DamageRemoved, KnowsNothingEverythingAndMoreHarm) {
  const auto [base, candidate] = base_and_candidate(50);
  const DamageRemoved nothing = damage_removed(base, base);
  EXPECT_DOUBLE_EQ(nothing.excess_ppl.value, 0.0);
  EXPECT_DOUBLE_EQ(nothing.kld.value, 0.0);
  EXPECT_NEAR(nothing.excess_ppl.error, 0.0, 1e-12);
  auto dense = base;
  for (PairedScore& s : dense) {
    s.nll = s.nll_reference;
    s.kld = 0;
  }
  const DamageRemoved everything = damage_removed(base, dense);
  EXPECT_DOUBLE_EQ(everything.excess_ppl.value, 1.0);
  EXPECT_DOUBLE_EQ(everything.kld.value, 1.0);
  const DamageRemoved harm = damage_removed(candidate, base);
  EXPECT_LT(harm.excess_ppl.value, -1.0);
  EXPECT_LT(harm.kld.value, -1.0);
  // A base that does no harm has none to be removed.
  EXPECT_TRUE(std::isnan(damage_removed(dense, base).excess_ppl.value));
  EXPECT_TRUE(std::isnan(damage_removed(dense, base).kld.error));
  EXPECT_THROW(damage_removed(base, std::span(candidate).first(49)), Error);
}

TEST(PairedScore, ComparesTheMostProbableTokens) {
  const std::vector<float> a = {0, 2, 1};
  const std::vector<float> b = {0, 1, 2};
  EXPECT_TRUE(paired_score(a, a, 0).same_top);
  EXPECT_FALSE(paired_score(a, b, 0).same_top);
  EXPECT_DOUBLE_EQ(paired_score(a, b, 2).nll, paired_score(a, b, 1).nll_reference);
}

}  // namespace
}  // namespace headq
