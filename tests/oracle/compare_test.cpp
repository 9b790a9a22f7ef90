#include "oracle/compare.h"

#include <vector>

#include "oracle/attention.h"
#include "oracle/quant.h"

// The instruments the other tests trust, against planted errors and closed forms.

TEST(Compare, CatchesOnePlantedError) {
  const std::vector<float> wanted(100, 1.0f);
  std::vector<float> got = wanted;
  EXPECT_TRUE(oracle::close(got, wanted, 1e-3));
  got[57] += 2e-3f;
  EXPECT_FALSE(oracle::close(got, wanted, 1e-3));
}

TEST(Compare, CatchesNan) {
  const std::vector<float> wanted(8, 1.0f);
  std::vector<float> got = wanted;
  got[0] = NAN;
  EXPECT_FALSE(oracle::close(got, wanted, 1e30));
}

TEST(Compare, DistrustsZerosAndSizes) {
  EXPECT_FALSE(oracle::close(std::vector<float>(4), std::vector<float>(4), 1.0));
  EXPECT_FALSE(oracle::close(std::vector<float>(3, 1.0f), std::vector<float>(4, 1.0f), 1.0));
}

TEST(OracleQuant, MidpointsOfTwoBitsByHand) {
  // 0..3 in steps of 1: 1.4 goes to 1, 2.6 to 3.
  const std::vector<double> coded = oracle::min_max({0.0, 1.4, 2.6, 3.0}, 3);
  EXPECT_EQ(coded, (std::vector<double>{0.0, 1.0, 3.0, 3.0}));
}

TEST(OracleAttention, TwoTokensByHand) {
  oracle::Head head;
  head.keys = {{1.0}, {0.0}};
  head.values = {{10.0}, {20.0}};
  const double p = 1.0 / (1.0 + std::exp(-2.0));  // scores 2 and 0
  const std::vector<double> out = oracle::attend({2.0}, head, {0.0, 0.0}, {}, 1);
  EXPECT_NEAR(out[0], 10.0 * p + 20.0 * (1.0 - p), 1e-12);
}

TEST(OracleQuant, HadamardIsItsOwnInverse) {
  std::vector<double> row;
  for (int i = 0; i < 80; ++i) row.push_back(std::sin(i));
  const std::vector<double> twice = oracle::hadamard_row(oracle::hadamard_row(row));
  EXPECT_TRUE(oracle::close(twice, row, 1e-12));
}
