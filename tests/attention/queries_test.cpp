#include "attention/queries.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "attention/dispatch.h"
#include "codec/nib_codec.h"
#include "codec/sample_nib.h"

namespace headq {
namespace {

// The tables of one query of a code with 40 nibbles, and what they stand for.
class TableFixture : public ::testing::Test {
 protected:
  static constexpr int kDim = 80, kGroups = 40;

  TableFixture() : codec_(kDim, testing::sample_nib(kDim, kGroups, 2, 5), 0) {
    std::mt19937_64 random(6);
    std::normal_distribution<float> normal;
    std::vector<float> q(kDim), coef(static_cast<size_t>(codec_.n_coef())), zero(1);
    // Coordinates of falling weight, as after a Karhunen-Loeve transform.
    for (size_t i = 0; i < q.size(); ++i) q[i] = normal(random) * std::exp(-0.05f * static_cast<float>(i));
    codec_.analyse(q.data(), coef.data(), zero.data());
    for (size_t i = 0; i < coef.size(); ++i) coef[i] *= std::exp(-0.05f * static_cast<float>(i));
    c_.resize(codec_.patterns().size() / 16);
    codec_.term_coefficients(coef.data(), c_.data());
    for (int g = 0; g < kGroups; ++g) {
      for (int n = 0; n < 16; ++n) {
        double sum = 0.0;
        for (int i = codec_.term_begin()[static_cast<size_t>(g)]; i < codec_.term_begin()[static_cast<size_t>(g) + 1]; ++i) {
          sum += static_cast<double>(c_[static_cast<size_t>(i)]) * codec_.patterns()[static_cast<size_t>(i * 16 + n)];
        }
        exact_.push_back(sum);
      }
    }
  }

  // Makes them for an error of scores and returns the variance that a token's sum of integers is off by,
  // nibbles being equally likely.
  double make(float score_error) {
    std::vector<float> work(table_work_floats(kGroups));
    make_tables(codec_, kernels_for(Isa::kScalar), c_.data(), score_error, work.data(),
                {.low = low_, .high = high_, .factor = factor_, .units = &unit_, .n_wide = &n_wide_});
    double variance = 0.0;
    for (int g = 0; g < kGroups; ++g) {
      EXPECT_GE(factor_[g], 1);
      EXPECT_LE(factor_[g], g < n_wide_ ? 1 : kMostFactor);
      for (int i = g * 16; i < g * 16 + 16; ++i) {
        const double got = static_cast<double>(unit_) * (factor_[g] * low_[i] + kHighFactor * high_[i]);
        const double off = got - exact_[static_cast<size_t>(i)];
        EXPECT_LE(std::fabs(off), 0.5001 * static_cast<double>(unit_) * factor_[g]) << "group " << g;
        EXPECT_TRUE(high_[i] == 0 || g < n_wide_);
        variance += off * off / 16.0;
      }
    }
    return variance;
  }

  NibCodec codec_;
  std::vector<float> c_;
  std::vector<double> exact_;
  int8_t low_[kGroups * 16], high_[kGroups * 16];
  uint8_t factor_[kGroups];
  float unit_ = 0.0f;
  int n_wide_ = -1;
};

TEST_F(TableFixture, AddNoMoreThanTheirShareToTheErrorOfScores) {
  int before = kGroups;
  bool some = false;
  for (float error = 1e-4f; error < 10.0f; error *= 1.5f) {
    const double variance = make(error);
    EXPECT_TRUE(n_wide_ == kGroups || variance <= static_cast<double>(kTableShare * error * error)) << error;
    EXPECT_LE(n_wide_, before) << "a larger error leaves more groups wide";
    before = n_wide_;
    some |= n_wide_ > 0 && n_wide_ < kGroups;
  }
  EXPECT_EQ(n_wide_, 0) << "an error that hides all else leaves no group wide";
  EXPECT_TRUE(some);
}

TEST_F(TableFixture, AreAsFineAsTheyCanBeWhereTheErrorIsNotKnown) {
  make(0.0f);
  EXPECT_EQ(n_wide_, kGroups);
  double top = 0.0;
  for (double x : exact_) top = std::max(top, std::fabs(x));
  EXPECT_NEAR(static_cast<double>(unit_), top / kTableTop, 1e-5 * top / kTableTop);
}

TEST_F(TableFixture, OfAQueryOfZerosAreZeros) {
  std::fill(c_.begin(), c_.end(), 0.0f);
  std::fill(exact_.begin(), exact_.end(), 0.0);
  for (float error : {0.0f, 1.0f}) EXPECT_EQ(make(error), 0.0);
}

}  // namespace
}  // namespace headq
