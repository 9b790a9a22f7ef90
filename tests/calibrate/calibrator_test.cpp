#include "headq/calibrate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "headq/error.h"

namespace headq {
namespace {

constexpr int kDim = 16;

// Rows [n][n_head][kDim] with given variance along axis `axis` and 1 elsewhere, plus an offset.
std::vector<float> rows(int n, int n_head, int axis, float sigma, float offset, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> out;
  for (int i = 0; i < n * n_head; ++i) {
    for (int c = 0; c < kDim; ++c) {
      out.push_back(normal(random) * (c == axis ? sigma : 1.0f) + (c == axis ? offset : 0.0f));
    }
  }
  return out;
}

Observation observation(int n, int n_head, int n_head_kv, const std::vector<float>& q,
                        const std::vector<float>& k, const std::vector<float>& v) {
  return {.layer = 0, .n_rows = n, .n_head = n_head, .n_head_kv = n_head_kv, .d_k = kDim,
          .d_v = kDim, .scale = 1.0f, .q = q, .k = k, .v = v, .mask = {}};
}

TEST(Calibrator, FirstBasisVectorIsTheAxisQueriesPointAlong) {
  const int n = 4000;
  const auto q = rows(n, 1, 6, 5.0f, 0.0f, 1), k = rows(n, 1, 9, 3.0f, 7.0f, 2), v = rows(n, 1, 2, 4.0f, 1.0f, 3);
  Calibrator calibrator({.skip_first = 0});
  calibrator.observe(observation(n, 1, 1, q, k, v));
  const Profile profile = calibrator.finish();
  ASSERT_EQ(profile.heads.size(), 1u);
  const HeadProfile& head = profile.heads[0];
  EXPECT_NEAR(head.query_basis[6], 1.0f, 1e-2);      // unit vector along axis 6, positive sign
  EXPECT_NEAR(head.query_spectrum[0], 25.0f, 2.0f);
  EXPECT_NEAR(head.query_spectrum[kDim - 1], 1.0f, 0.2f);
  EXPECT_NEAR(head.key_basis[9], 1.0f, 1e-2);        // covariance: the mean does not count
  EXPECT_NEAR(head.key_spectrum[0], 9.0f, 1.0f);
  EXPECT_NEAR(head.key_mean[9], 7.0f, 0.2f);
  EXPECT_NEAR(head.query_energy[6], 25.0f, 2.0f);
  EXPECT_NEAR(head.key_variance[9], 9.0f, 1.0f);
  EXPECT_NEAR(head.value_variance[2], 16.0f, 1.5f);
  EXPECT_NEAR(head.value_variance[3], 1.0f, 0.2f);
}

TEST(Calibrator, QueryMomentKeepsTheMean) {
  const int n = 2000;
  const auto q = rows(n, 1, 4, 0.1f, 6.0f, 1), other = rows(n, 1, 0, 1.0f, 0.0f, 2);
  Calibrator calibrator({.skip_first = 0});
  calibrator.observe(observation(n, 1, 1, q, other, other));
  const Profile profile = calibrator.finish();
  EXPECT_NEAR(profile.heads[0].query_basis[4], 1.0f, 1e-3);
  EXPECT_NEAR(profile.heads[0].query_spectrum[0], 36.0f, 0.5f);
}

TEST(Calibrator, QueryHeadsOfAGroupArePooled) {
  const int n = 2000;
  std::vector<float> q;  // heads 0, 1 of group 0: axes 1 and 2; heads 2, 3 of group 1: axis 3
  const auto a = rows(n, 1, 1, 4.0f, 0.0f, 1), b = rows(n, 1, 2, 6.0f, 0.0f, 2), c = rows(n, 1, 3, 5.0f, 0.0f, 3);
  for (int i = 0; i < n; ++i) {
    for (const auto* head : {&a, &b, &c, &c}) {
      q.insert(q.end(), head->begin() + i * kDim, head->begin() + (i + 1) * kDim);
    }
  }
  const auto k = rows(n, 2, 0, 1.0f, 0.0f, 4);
  Calibrator calibrator({.skip_first = 0});
  calibrator.observe(observation(n, 4, 2, q, k, k));
  const Profile profile = calibrator.finish();
  ASSERT_EQ(profile.heads.size(), 2u);
  EXPECT_NEAR(profile.heads[0].query_spectrum[0], (36.0 + 1.0) / 2, 1.5);
  EXPECT_NEAR(profile.heads[0].query_spectrum[1], (16.0 + 1.0) / 2, 1.0);
  EXPECT_NEAR(profile.heads[1].query_spectrum[0], 25.0, 1.5);
}

TEST(Calibrator, FirstPositionsOfEachChunkAreLeftOut) {
  const int n = 100;
  auto q = rows(n, 1, 0, 1.0f, 0.0f, 1);
  auto k = rows(n, 1, 0, 1.0f, 0.0f, 2);
  Calibrator clean, spoiled, whole({.skip_first = 0});
  clean.observe(observation(n, 1, 1, q, k, k));
  for (int i = 0; i < 4 * kDim; ++i) q[static_cast<size_t>(i)] = k[static_cast<size_t>(i)] = 1000.0f;
  // The same rows in two observations, the first shorter than what is left out.
  const auto part = [&](const std::vector<float>& x, int from, int to) {
    return std::vector<float>(x.begin() + from * kDim, x.begin() + to * kDim);
  };
  spoiled.begin_chunk();
  const auto q1 = part(q, 0, 3), k1 = part(k, 0, 3), q2 = part(q, 3, n), k2 = part(k, 3, n);
  spoiled.observe(observation(3, 1, 1, q1, k1, k1));
  spoiled.observe(observation(n - 3, 1, 1, q2, k2, k2));
  whole.observe(observation(n, 1, 1, q, k, k));
  EXPECT_EQ(clean.n_tokens(), 96u);
  EXPECT_EQ(clean.finish().heads[0].query_basis, spoiled.finish().heads[0].query_basis);
  EXPECT_EQ(clean.finish().heads[0].key_mean, spoiled.finish().heads[0].key_mean);
  EXPECT_NE(clean.finish().heads[0].key_mean, whole.finish().heads[0].key_mean);
}

TEST(Calibrator, RefusesWhatDoesNotFit) {
  const auto x = rows(8, 1, 0, 1.0f, 0.0f, 1);
  Calibrator calibrator({.skip_first = 0});
  Observation o = observation(8, 1, 1, x, x, x);
  o.n_rows = 9;
  EXPECT_THROW(calibrator.observe(o), Error);
  o.n_rows = 8;
  calibrator.observe(o);
  EXPECT_THROW(calibrator.finish(), Error);  // 8 tokens, 16 channels
  const auto two = rows(8, 2, 0, 1.0f, 0.0f, 1);
  EXPECT_THROW(calibrator.observe(observation(8, 2, 2, two, two, two)), Error);
}

}  // namespace
}  // namespace headq
