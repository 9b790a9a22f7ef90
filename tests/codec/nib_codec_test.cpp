#include "codec/nib_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "codec/codec.h"
#include "headq/error.h"
#include "oracle/compare.h"
#include "oracle/rows.h"
#include "sample_nib.h"

namespace headq {
namespace {

using Doubles = std::vector<double>;
using testing::sample_nib;

struct Shape {
  int d, n_nibbles, width;
};
class NibCodecShapes : public ::testing::TestWithParam<Shape> {
 protected:
  NibCode code_ = sample_nib(GetParam().d, GetParam().n_nibbles, GetParam().width, 21);
  int d_ = GetParam().d;

  std::vector<uint8_t> encoded(const NibCodec& codec, const std::vector<float>& rows,
                               uint64_t valid = ~uint64_t{0}) const {
    std::vector<uint8_t> block(codec.layout().bytes(), 0xee);
    codec.encode(rows.data(), valid, block.data());
    return block;
  }
  int nibble(const std::vector<uint8_t>& block, int g, int t) const {
    return block[static_cast<size_t>(g * kGroupBytes + t % 32)] >> (t / 32 * 4) & 15;
  }
  std::vector<float> decoded(const NibCodec& codec, const std::vector<uint8_t>& block, int t) const {
    std::vector<float> row(static_cast<size_t>(d_));
    codec.decode(block.data(), t, row.data());
    return row;
  }
};
INSTANTIATE_TEST_SUITE_P(Shapes, NibCodecShapes,
                         ::testing::Values(Shape{16, 4, 2}, Shape{64, 32, 2}, Shape{80, 13, 6},
                                           Shape{128, 128, 1}, Shape{256, 60, 4}));

// The true bits are what the name says: nibbles and nothing else.
TEST_P(NibCodecShapes, ABlockIsItsNibbles) {
  const NibCodec codec(d_, code_, 0);
  EXPECT_EQ(codec.layout().bytes(), static_cast<size_t>(GetParam().n_nibbles) * 32);
}

// x^ = mean + sum over nibbles and the coordinates they reach of scale * codebook * synthesis.
TEST_P(NibCodecShapes, DecodesByItsDefinition) {
  const NibCodec codec(d_, code_, 0);
  const auto block = encoded(codec, oracle::normal_rows(kBlockTokens, d_, 1));
  for (int t : {0, 31, 32, 63}) {
    Doubles wanted(code_.mean.begin(), code_.mean.end());
    size_t term = 0;
    for (int g = 0; g < code_.n_nibbles(); ++g) {
      for (int c = code_.reach[static_cast<size_t>(2 * g)];
           c < code_.reach[static_cast<size_t>(2 * g + 1)]; ++c, ++term) {
        const double y = static_cast<double>(code_.scale[term]) *
                         code_.codebook[term * 16 + static_cast<size_t>(nibble(block, g, t))];
        for (int i = 0; i < d_; ++i) {
          wanted[static_cast<size_t>(i)] += y * code_.synthesis[static_cast<size_t>(c * d_ + i)];
        }
      }
    }
    const std::vector<float> row = decoded(codec, block, t);
    EXPECT_TRUE(oracle::close(Doubles(row.begin(), row.end()), wanted, 1e-5)) << t;
  }
}

// No single nibble can be changed for the better: |analysis (x - x^)|^2 is least.
TEST_P(NibCodecShapes, NoOtherNibbleIsCloser) {
  const NibCodec codec(d_, code_, 0);
  const std::vector<float> rows = oracle::normal_rows(kBlockTokens, d_, 2);
  const auto block = encoded(codec, rows);
  const auto error = [&](const std::vector<uint8_t>& b, int t) {
    const std::vector<float> row = decoded(codec, b, t);
    double sum = 0.0;
    for (int c = 0; c < code_.n_coords(); ++c) {
      double y = 0.0;
      for (int i = 0; i < d_; ++i) {
        y += static_cast<double>(code_.analysis[static_cast<size_t>(c * d_ + i)]) *
             (static_cast<double>(rows[static_cast<size_t>(t * d_ + i)]) - row[static_cast<size_t>(i)]);
      }
      sum += y * y;
    }
    return sum;
  };
  for (int t : {3, 40}) {
    const double least = error(block, t);
    for (int g = 0; g < codec.layout().n_groups; g += 3) {
      for (int n = 0; n < 16; ++n) {
        auto other = block;
        uint8_t& byte = other[static_cast<size_t>(g * kGroupBytes + t % 32)];
        byte = static_cast<uint8_t>(t < 32 ? (byte & 0xf0) | n : (byte & 0x0f) | n << 4);
        EXPECT_GE(error(other, t), least * (1 - 1e-5) - 1e-6) << "nibble " << g << " = " << n;
      }
    }
  }
}

// Save, restore and shift code decoded rows again; f16 may have rounded them.
TEST_P(NibCodecShapes, DecodedRowsGiveTheirNibblesAgain) {
  const NibCodec codec(d_, code_, 0);
  std::vector<float> rows = oracle::normal_rows(kBlockTokens, d_, 3);
  const auto first = encoded(codec, rows);
  for (int t = 0; t < kBlockTokens; ++t) codec.decode(first.data(), t, rows.data() + t * d_);
  EXPECT_EQ(encoded(codec, rows), first);
  for (float& x : rows) x = half_to_float(float_to_half(x));
  EXPECT_EQ(encoded(codec, rows), first);
}

TEST_P(NibCodecShapes, RowsAreCodedAlone) {
  const NibCodec codec(d_, code_, 0);
  std::vector<float> rows = oracle::normal_rows(kBlockTokens, d_, 4);
  const uint64_t valid = 0x8000000100000012u;
  const auto alone = encoded(codec, rows, valid), all = encoded(codec, rows);
  for (int t = 0; t < kBlockTokens; ++t) {
    for (int g = 0; g < codec.layout().n_groups; ++g) {
      ASSERT_EQ(nibble(alone, g, t), (valid >> t & 1) != 0 ? nibble(all, g, t) : 0);
    }
  }
}

TEST_P(NibCodecShapes, TablesSumToTheScoreOfTheDecodedRow) {
  const int wrong_sign = GetParam().n_nibbles / 4;
  const NibCodec codec(d_, code_, 0), wrong(d_, code_, wrong_sign);
  const auto block = encoded(codec, oracle::normal_rows(kBlockTokens, d_, 5));
  const std::vector<float> q = oracle::normal_rows(1, d_, 6);
  const auto score = [&](const NibCodec& c, int t) {
    std::vector<float> coef(static_cast<size_t>(c.n_coef())), zero(1);
    std::vector<float> factors(c.patterns().size() / 16);
    double sum = c.analyse(q.data(), coef.data(), zero.data());
    c.term_coefficients(coef.data(), factors.data());
    for (int g = 0; g < c.layout().n_groups; ++g) {
      const size_t s = static_cast<size_t>(g);
      for (int i = c.term_begin()[s]; i < c.term_begin()[s + 1]; ++i) {
        sum += static_cast<double>(factors[static_cast<size_t>(i)]) *
               c.patterns()[static_cast<size_t>(i * 16 + nibble(block, g, t))];
      }
    }
    return sum;
  };
  const auto dot = [&](const std::vector<float>& row) {
    double sum = 0.0;
    for (int i = 0; i < d_; ++i) {
      sum += static_cast<double>(q[static_cast<size_t>(i)]) * row[static_cast<size_t>(i)];
    }
    return sum;
  };
  Doubles got, wanted, got_wrong, wanted_wrong;
  for (int t = 0; t < kBlockTokens; ++t) {
    got.push_back(score(codec, t));
    wanted.push_back(dot(decoded(codec, block, t)));
    // What the last nibbles add to the score, taken off twice.
    double last = 0.0;
    size_t term = 0;
    for (int g = 0; g < code_.n_nibbles(); ++g) {
      for (int c = code_.reach[static_cast<size_t>(2 * g)];
           c < code_.reach[static_cast<size_t>(2 * g + 1)]; ++c, ++term) {
        if (g < code_.n_nibbles() - wrong_sign) continue;
        const std::vector<float> direction(code_.synthesis.begin() + c * d_,
                                           code_.synthesis.begin() + (c + 1) * d_);
        last += static_cast<double>(code_.scale[term]) *
                code_.codebook[term * 16 + static_cast<size_t>(nibble(block, g, t))] * dot(direction);
      }
    }
    got_wrong.push_back(score(wrong, t));
    wanted_wrong.push_back(wanted.back() - 2 * last);
  }
  EXPECT_TRUE(oracle::close(got, wanted, 1e-5));
  EXPECT_TRUE(oracle::close(got_wrong, wanted_wrong, 1e-5));
  EXPECT_FALSE(oracle::close(got_wrong, wanted, 1e-2)) << "the wrong sign changed nothing";
}

TEST_P(NibCodecShapes, WeightedSumsAreThoseOfDecodedRows) {
  const NibCodec codec(d_, code_, 0);
  const auto block = encoded(codec, oracle::normal_rows(kBlockTokens, d_, 7));
  const ValueSums& sums = codec.sums();
  std::vector<float> acc(static_cast<size_t>(codec.n_coords()), 0.0f);
  Doubles wanted(static_cast<size_t>(d_), 0.0);
  for (int t = 0; t < kBlockTokens; ++t) {
    const float p = 0.5f + static_cast<float>(t % 7);
    for (size_t i = 0; i < sums.n(); ++i) {
      for (size_t j = 2 * i; j < 2 * i + 2; ++j) {
        if (sums.group[j] < 0) continue;
        acc[static_cast<size_t>(sums.coord[i])] +=
            p * sums.scale[i] *
            static_cast<float>(sums.table[j * 16 + static_cast<size_t>(nibble(block, sums.group[j], t))]);
      }
    }
    const std::vector<float> row = decoded(codec, block, t);
    for (size_t i = 0; i < row.size(); ++i) wanted[i] += static_cast<double>(p) * row[i];
  }
  std::vector<float> out(static_cast<size_t>(d_), 1.0f);
  codec.synthesise(acc.data(), out.data());
  Doubles got;
  for (float x : out) got.push_back(x - 1.0);
  EXPECT_TRUE(oracle::close(got, wanted, 1e-4));
}

TEST(NibCodec, NonFiniteElementsStayInTheirRow) {
  const int d = 64;
  const NibCodec codec(d, sample_nib(d, 16, 4, 9), 0);
  std::vector<float> rows = oracle::normal_rows(kBlockTokens, d, 8);
  std::vector<uint8_t> clean(codec.layout().bytes()), block(clean);
  codec.encode(rows.data(), ~uint64_t{0}, clean.data());
  rows[3 * d + 7] = NAN;
  rows[9 * d + 7] = INFINITY;
  codec.encode(rows.data(), ~uint64_t{0}, block.data());
  std::vector<float> row(static_cast<size_t>(d)), before(row);
  for (int t = 0; t < kBlockTokens; ++t) {
    codec.decode(block.data(), t, row.data());
    codec.decode(clean.data(), t, before.data());
    for (float x : row) ASSERT_TRUE(std::isfinite(x));
    if (t == 3 || t == 9) continue;
    EXPECT_EQ(row, before) << t;
  }
}

TEST(NibCodec, RefusesCodesOfAnotherShape) {
  const NibCode code = sample_nib(64, 16, 2, 10);
  EXPECT_THROW(NibCodec(80, code, 0), Error);
  EXPECT_THROW(NibCodec(64, NibCode{}, 0), Error);
  NibCode short_table = code;
  short_table.codebook.pop_back();
  EXPECT_THROW(NibCodec(64, short_table, 0), Error);
}

}  // namespace
}  // namespace headq
