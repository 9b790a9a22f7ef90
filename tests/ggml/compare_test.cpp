// The comparator catches planted errors.
#include "ggml/compare.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

namespace headq::testing {
namespace {

Logits ramp(int n_rows, int n_vocab) {
  Logits out{n_vocab, {}};
  for (int i = 0; i < n_rows * n_vocab; ++i) out.data.push_back(0.01f * static_cast<float>(i % 37));
  return out;
}

TEST(Compare, EqualLogitsHaveNoDifference) {
  const Logits a = ramp(3, 50);
  EXPECT_EQ(max_difference(a, a), 0.0);
  EXPECT_EQ(relative_error(a, a), 0.0);
  EXPECT_EQ(mean_kld(a, a), 0.0);
  EXPECT_TRUE(identical(a, a));
}

TEST(Compare, OneWrongLogitIsSeen) {
  const Logits a = ramp(3, 50);
  Logits b = a;
  b.data[149] += 0.5f;
  EXPECT_NEAR(max_difference(a, b), 0.5, 1e-6);
  EXPECT_GT(relative_error(a, b), 0.0);
  EXPECT_GT(mean_kld(a, b), 0.0);
  EXPECT_FALSE(identical(a, b));
}

TEST(Compare, LastBitBreaksIdentity) {
  const Logits a = ramp(1, 50);
  Logits b = a;
  b.data[7] = std::nextafter(b.data[7], 1.0f);
  EXPECT_FALSE(identical(a, b));
}

TEST(Compare, KldOfTwoKnownDistributions) {
  const Logits a{2, {0.0f, 0.0f}};
  const Logits b{2, {std::log(3.0f), 0.0f}};  // probabilities 3/4 and 1/4
  EXPECT_NEAR(mean_kld(a, b), 0.5 * std::log(0.5 / 0.75) + 0.5 * std::log(0.5 / 0.25), 1e-6);
}

TEST(Compare, NanPassesNoBound) {
  const Logits a = ramp(2, 50);
  Logits b = a;
  b.data[3] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(max_difference(a, b) <= 1e9);
  EXPECT_FALSE(relative_error(a, b) <= 1e9);
  EXPECT_FALSE(mean_kld(a, b) <= 1e9);
  EXPECT_FALSE(all_finite(b));
}

TEST(Compare, UnlikeShapesAreRefused) {
  EXPECT_THROW(max_difference(ramp(2, 50), ramp(3, 50)), std::invalid_argument);
  EXPECT_THROW(relative_error(Logits{}, Logits{}), std::invalid_argument);
}

}  // namespace
}  // namespace headq::testing
