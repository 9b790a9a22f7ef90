#include "diagnose/metrics.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

namespace headq {
namespace {

using Doubles = std::vector<double>;

Doubles softmax_of(const Doubles& scores) {
  Doubles p(scores.size());
  softmax(scores, p);
  return p;
}

// The divergence from its definition, in extended precision: sum p ln(p / p').
double divergence(const Doubles& scores, const Doubles& delta) {
  long double z = 0, z_coded = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    z += std::exp(static_cast<long double>(scores[j]));
    z_coded += std::exp(static_cast<long double>(scores[j]) + delta[j]);
  }
  long double sum = 0;
  for (size_t j = 0; j < scores.size(); ++j) {
    const long double p = std::exp(static_cast<long double>(scores[j])) / z;
    const long double q = std::exp(static_cast<long double>(scores[j]) + delta[j]) / z_coded;
    sum += p * std::log(p / q);
  }
  return static_cast<double>(sum);
}

Doubles normal(size_t n, double sigma, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> draw(0.0, sigma);
  Doubles out(n);
  for (double& x : out) x = draw(random);
  return out;
}

TEST(Metrics, TwoTokensHaveTheirClosedForms) {
  // p = (1 - a, a), delta = (0, t): the Fisher variance is a (1 - a) t^2 / 2, the divergence
  // ln(1 - a + a e^t) - a t, the score error t^2 / 4.
  for (double a : {0.5, 0.1, 0.9, 1e-3}) {
    for (double t : {1e-4, -0.3, 2.0, -7.0}) {
      const Doubles p = {1 - a, a};
      const Doubles delta = {0, t};
      const ScoreDamage damage = score_damage(p, delta);
      EXPECT_NEAR(damage.fisher, 0.5 * a * (1 - a) * t * t, 1e-14 * t * t);
      EXPECT_NEAR(damage.score_error, 0.25 * t * t, 1e-14 * t * t);
      const double kl = std::log1p(a * std::expm1(t)) - a * t;
      EXPECT_NEAR(damage.kl, kl, 1e-12 * std::fabs(kl) + 1e-18 + 1e-9 * t * t * (t < 1e-3));
    }
  }
}

TEST(Metrics, FisherIsTheDivergenceToSecondOrder) {
  const Doubles p = softmax_of(normal(50, 2.0, 1));
  const Doubles direction = normal(50, 1.0, 2);
  double last = 1;
  for (double step : {1e-1, 1e-2, 1e-3, 1e-4}) {
    Doubles delta = direction;
    for (double& x : delta) x *= step;
    const ScoreDamage damage = score_damage(p, delta);
    const double off = std::fabs(damage.kl / damage.fisher - 1);
    EXPECT_LT(off, 2 * step);    // the next term is of third order
    EXPECT_LT(off, 0.2 * last);  // and goes with the step
    last = off;
  }
}

TEST(Metrics, TheDivergenceIsThatOfItsDefinition) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Doubles scores = normal(40, 3.0, seed);
    const Doubles delta = normal(40, seed % 2 == 0 ? 0.5 : 8.0, seed + 100);
    const double wanted = divergence(scores, delta);
    EXPECT_NEAR(score_damage(softmax_of(scores), delta).kl, wanted, 1e-10 * (1 + wanted));
  }
}

TEST(Metrics, AShiftThatAllTokensShareIsExactlyNothing) {
  const Doubles p = softmax_of(normal(33, 2.0, 3));
  for (double shift : {1.0, -0.1, 1e6, 1e-300}) {
    const ScoreDamage damage = score_damage(p, Doubles(33, shift));
    EXPECT_EQ(damage.score_error, 0.0);
    EXPECT_EQ(damage.fisher, 0.0);
    EXPECT_EQ(damage.kl, 0.0);
  }
}

TEST(Metrics, AShiftOnTopOfAnErrorChangesNothing) {
  const Doubles p = softmax_of(normal(20, 1.0, 4));
  Doubles delta = normal(20, 1.0, 5);
  const ScoreDamage plain = score_damage(p, delta);
  for (double& x : delta) x += 1000;
  const ScoreDamage moved = score_damage(p, delta);
  EXPECT_GT(plain.kl, 0.01);
  EXPECT_NEAR(moved.kl, plain.kl, 1e-10);
  EXPECT_NEAR(moved.fisher, plain.fisher, 1e-10);
  EXPECT_NEAR(moved.score_error, plain.score_error, 1e-10);
}

TEST(Metrics, AnErrorAtOneTokenIsCaught) {
  // Planted: one token in a hundred is off by 3, the likeliest or the least likely.
  Doubles scores(100, 0.0);
  scores[7] = 5.0;
  const Doubles p = softmax_of(scores);
  Doubles at_top(100, 0.0), at_tail(100, 0.0);
  at_top[7] = at_tail[8] = -3.0;
  const ScoreDamage top = score_damage(p, at_top), tail = score_damage(p, at_tail);
  EXPECT_DOUBLE_EQ(top.score_error, tail.score_error);
  EXPECT_NEAR(top.kl, divergence(scores, at_top), 1e-12);
  EXPECT_NEAR(tail.kl, divergence(scores, at_tail), 1e-12);
  EXPECT_GT(top.kl, 50 * tail.kl);
  EXPECT_GT(top.fisher, 50 * tail.fisher);
}

TEST(Metrics, HugeErrorsStayFinite) {
  const Doubles p = {0.25, 0.25, 0.5};
  const ScoreDamage damage = score_damage(p, Doubles{0, 2000, -2000});
  // p' is all on token 1: sum p ln(p / p') = ln(1/4) + 2000 - (2000 - 1000 * 2) / 4 ...
  EXPECT_NEAR(damage.kl, 2000 + std::log(0.25) - (0.25 * 2000 - 0.5 * 2000), 1e-6);
  EXPECT_TRUE(std::isfinite(damage.fisher));
}

TEST(Metrics, ReweighIsTheSoftmaxOfTheSum) {
  const Doubles scores = normal(30, 2.0, 6);
  const Doubles delta = normal(30, 2.0, 7);
  Doubles sum = scores, coded(30);
  for (size_t j = 0; j < 30; ++j) sum[j] += delta[j];
  reweigh(softmax_of(scores), delta, coded);
  const Doubles wanted = softmax_of(sum);
  for (size_t j = 0; j < 30; ++j) EXPECT_NEAR(coded[j], wanted[j], 1e-14);
  const Doubles p = softmax_of(scores);
  reweigh(p, Doubles(30, -3.7), coded);
  EXPECT_EQ(coded, p);
}

TEST(Metrics, EntropyCountsTheTokensThatShareTheAttention) {
  EXPECT_NEAR(std::exp(entropy(Doubles(8, 0.125))), 8.0, 1e-12);
  EXPECT_EQ(entropy(Doubles{0, 1, 0}), 0.0);
}

TEST(Metrics, TheFirstOfEqualsIsTheTop) {
  EXPECT_EQ(top_index(Doubles{1, 3, 3, 2}), 1u);
  EXPECT_EQ(top_index(Doubles{-1}), 0u);
}

}  // namespace
}  // namespace headq
