#include "codec/a2_codec.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <numeric>

#include "headq/error.h"
#include "oracle/compare.h"
#include "oracle/quant.h"
#include "oracle/rows.h"

namespace headq {
namespace {

using Doubles = std::vector<double>;

constexpr uint64_t kAll = ~uint64_t{0};

Doubles to_doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

std::unique_ptr<Codec> codec_of(const char* text, int d) {
  return make_value_codec(CodecSpec::parse(text), d, nullptr);
}

// Attention paid that grows in an order unlike that of the tokens: most to token 37, then 11, ...
std::vector<float> planted_paid() {
  std::vector<float> paid(kBlockTokens);
  for (int i = 0; i < kBlockTokens; ++i) {
    paid[static_cast<size_t>((37 * (i + 1)) % 64)] = std::pow(0.8f, static_cast<float>(i));
  }
  return paid;
}

// The n tokens with most of it.
uint64_t most_paid(const std::vector<float>& paid, int n) {
  uint64_t out = 0;
  for (int i = 0; i < n; ++i) {
    int best = -1;
    for (int t = 0; t < kBlockTokens; ++t) {
      if ((out >> t & 1) != 0) continue;
      if (best < 0 || paid[static_cast<size_t>(t)] > paid[static_cast<size_t>(best)]) best = t;
    }
    out |= uint64_t{1} << best;
  }
  return out;
}

std::vector<uint8_t> coded(const Codec& codec, const std::vector<float>& rows,
                           const std::vector<float>& paid, uint64_t valid = kAll) {
  std::vector<uint8_t> block(codec.layout().bytes(), 0xee);
  codec.encode_paid(rows.data(), valid, paid.data(), block.data());
  return block;
}

std::vector<float> decoded(const Codec& codec, const std::vector<uint8_t>& block) {
  std::vector<float> out(static_cast<size_t>(kBlockTokens * codec.head_dim()));
  for (int t = 0; t < kBlockTokens; ++t) codec.decode(block.data(), t, out.data() + t * codec.head_dim());
  return out;
}

// What the rows are coded as: 4 bits for the refined tokens, 2 for the others.
Doubles wanted_rows(const std::vector<float>& rows, int d, uint64_t refined) {
  const Doubles coarse = oracle::per_token(to_doubles(rows), kBlockTokens, d, 2, 64);
  Doubles out = oracle::per_token(to_doubles(rows), kBlockTokens, d, 4, 64);
  for (int t = 0; t < kBlockTokens; ++t) {
    if ((refined >> t & 1) == 0) std::copy_n(coarse.begin() + t * d, d, out.begin() + t * d);
  }
  return out;
}

class A2CodecDims : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, A2CodecDims, testing::Values(16, 17, 64, 66, 80, 96, 128, 256));

TEST_P(A2CodecDims, TheMostPaidTokensHaveFourBitsAndTheOthersTwo) {
  const int d = GetParam();
  const auto codec = codec_of("kivi2+a2", d);
  const std::vector<float> rows = oracle::awkward_rows(kBlockTokens, d, 41);
  const std::vector<float> paid = planted_paid();
  const std::vector<uint8_t> block = coded(*codec, rows, paid);
  EXPECT_EQ(codec->refined(block.data()), most_paid(paid, kRefinedTokens));
  const Doubles got = to_doubles(decoded(*codec, block));
  EXPECT_TRUE(oracle::close(got, wanted_rows(rows, d, most_paid(paid, kRefinedTokens)), 1e-5));
  // One token more or less would be noticed.
  EXPECT_FALSE(oracle::close(got, wanted_rows(rows, d, most_paid(paid, kRefinedTokens - 1)), 1e-5));
  EXPECT_FALSE(oracle::close(got, wanted_rows(rows, d, most_paid(paid, kRefinedTokens + 1)), 1e-5));
}

TEST_P(A2CodecDims, TablesSumToTheWeightedSumOfTheDecodedRows) {
  const int d = GetParam();
  const auto codec = codec_of("kivi2+a2", d);
  const std::vector<float> rows = oracle::normal_rows(kBlockTokens, d, 32);
  const std::vector<uint8_t> block = coded(*codec, rows, planted_paid());
  const std::vector<float> x = decoded(*codec, block);
  const std::vector<float> p = planted_paid();
  const Half* params = codec->layout().params(block.data());
  std::vector<int> fine;
  for (int t = 0; t < kBlockTokens; ++t) {
    if ((codec->refined(block.data()) >> t & 1) != 0) fine.push_back(t);
  }
  std::vector<float> acc(static_cast<size_t>(codec->n_coords()));
  for (const Segment& segment : codec->segments()) {
    ASSERT_GE(segment.token_params, 0);
    const Half* scale = params + segment.token_params;
    for (int i = segment.sum_begin; i < segment.sum_end; ++i) {
      const size_t sum = static_cast<size_t>(i);
      const int group = codec->sums().group[2 * sum];
      ASSERT_GE(group, segment.group_begin);
      ASSERT_LT(group, segment.group_end);
      const auto add = [&](int t, int slot) {
        const int n = block[static_cast<size_t>(group * kGroupBytes + slot % 32)] >> (slot / 32 * 4) & 15;
        acc[static_cast<size_t>(codec->sums().coord[sum])] +=
            p[static_cast<size_t>(t)] * half_to_float(scale[t]) * codec->sums().scale[sum] *
            static_cast<float>(codec->sums().table[sum * 32 + static_cast<size_t>(n)]);
      };
      for (size_t k = 0; k < fine.size() && segment.quarter >= 0; ++k) {
        add(fine[k], 16 * segment.quarter + static_cast<int>(k));
      }
      for (int t = 0; t < kBlockTokens && segment.quarter < 0; ++t) add(t, t);
    }
    for (int t = 0; t < kBlockTokens && segment.quarter < 0; ++t) {
      for (int c = segment.coord_begin; c < segment.coord_end; ++c) {
        acc[static_cast<size_t>(codec->coord_order()[static_cast<size_t>(c)])] +=
            p[static_cast<size_t>(t)] * half_to_float(scale[kBlockTokens + t]);
      }
    }
  }
  std::vector<float> got(static_cast<size_t>(d));
  codec->synthesise(acc.data(), got.data());
  Doubles wanted(static_cast<size_t>(d));
  for (int t = 0; t < kBlockTokens; ++t) {
    for (int c = 0; c < d; ++c) {
      wanted[static_cast<size_t>(c)] +=
          static_cast<double>(p[static_cast<size_t>(t)]) * x[static_cast<size_t>(t * d + c)];
    }
  }
  EXPECT_TRUE(oracle::close(to_doubles(got), wanted, 1e-5));
}

TEST_P(A2CodecDims, CoordinatesAreTheDecodedRows) {
  const int d = GetParam();
  const auto codec = codec_of("kivi2+a2", d);
  const std::vector<uint8_t> block = coded(*codec, oracle::awkward_rows(kBlockTokens, d, 33), planted_paid());
  std::vector<float> y(static_cast<size_t>(d * kBlockTokens), NAN);
  codec->coordinates(block.data(), y.data());
  const std::vector<float> x = decoded(*codec, block);
  Doubles got;
  for (int t = 0; t < kBlockTokens; ++t) {
    for (int c = 0; c < d; ++c) got.push_back(y[static_cast<size_t>(c * kBlockTokens + t)]);
  }
  EXPECT_TRUE(oracle::close(got, to_doubles(x), 1e-6));
}

TEST_P(A2CodecDims, CodesComeBackFromDecodedHalves) {
  const int d = GetParam();
  for (const char* text : {"kivi2+a2", "kivi2+a2@random"}) {
    const auto codec = codec_of(text, d);
    const std::vector<uint8_t> first = coded(*codec, oracle::normal_rows(kBlockTokens, d, 34), planted_paid(), kAll << 4);
    std::vector<float> rows = decoded(*codec, first);
    for (float& x : rows) x = half_to_float(float_to_half(x));
    std::vector<uint8_t> second(first.size());
    codec->reencode(rows.data(), kAll << 4, second.data());
    EXPECT_EQ(codec->refined(first.data()), codec->refined(second.data())) << text;
    EXPECT_TRUE(std::equal(first.begin(), first.begin() + static_cast<std::ptrdiff_t>(codec->layout().code_bytes()),
                           second.begin())) << text;
  }
}

TEST(A2Codec, TrueBitsCountTheRefinementAndItsMask) {
  const auto bits = [](int d) {
    return static_cast<double>(codec_of("kivi2+a2", d)->layout().bytes()) * 8.0 / (d * kBlockTokens);
  };
  // 2 bits, a quarter of 2 bits, two f16 for 64 channels, and 64 bits for 64 rows.
  EXPECT_DOUBLE_EQ(bits(64), 2 + 0.5 + 32.0 / 64 + 1.0 / 64);
  EXPECT_DOUBLE_EQ(bits(128), 2 + 0.5 + 32.0 / 64 + 1.0 / 128);
}

TEST(A2Codec, InvalidTokensAreNeverRefinedAndDoNotCount) {
  const int d = 64;
  const auto codec = codec_of("kivi2+a2", d);
  std::vector<float> rows = oracle::normal_rows(kBlockTokens, d, 35);
  const std::vector<float> paid = planted_paid();
  const uint64_t valid = ~most_paid(paid, 8);
  const std::vector<uint8_t> clean = coded(*codec, rows, paid, valid);
  EXPECT_EQ(codec->refined(clean.data()), most_paid(paid, 24) & valid);
  for (int t = 0; t < kBlockTokens; ++t) {
    if ((valid >> t & 1) == 0) std::fill_n(rows.begin() + t * d, d, NAN);
  }
  EXPECT_EQ(coded(*codec, rows, paid, valid), clean);
  // Fewer tokens than may be refined: all of them.
  EXPECT_EQ(codec->refined(coded(*codec, rows, paid, most_paid(paid, 13) & valid).data()),
            most_paid(paid, 13) & valid);
}

TEST(A2Codec, EqualAttentionGoesByOrderAndWhatIsNoNumberLast) {
  const auto codec = codec_of("kivi2+a2", 64);
  const std::vector<float> rows = oracle::normal_rows(kBlockTokens, 64, 36);
  std::vector<float> paid(kBlockTokens, 0.5f);
  EXPECT_EQ(codec->refined(coded(*codec, rows, paid).data()), 0xffffu);
  paid[3] = NAN;
  EXPECT_EQ(codec->refined(coded(*codec, rows, paid).data()), 0x1fff7u);
}

TEST(A2Codec, RandomTokensComeFromTheSeedAndTheRowsAndNotFromAttention) {
  const auto codec = codec_of("kivi2+a2@random", 64), other = codec_of("kivi2+a2@random:2", 64);
  EXPECT_FALSE(codec->wants_paid());
  EXPECT_TRUE(codec_of("kivi2+a2", 64)->wants_paid());
  const std::vector<float> a = oracle::normal_rows(kBlockTokens, 64, 37);
  const std::vector<float> b = oracle::normal_rows(kBlockTokens, 64, 38);
  const auto refined = [](const Codec& c, const std::vector<float>& rows) {
    return c.refined(coded(c, rows, planted_paid()).data());
  };
  EXPECT_EQ(refined(*codec, a), refined(*codec, a));
  EXPECT_NE(refined(*codec, a), refined(*codec, b));
  EXPECT_NE(refined(*codec, a), refined(*other, a));
  EXPECT_EQ(std::popcount(refined(*codec, a)), kRefinedTokens);
  std::vector<uint8_t> unpaid(codec->layout().bytes());
  codec->encode(a.data(), kAll, unpaid.data());
  EXPECT_EQ(unpaid, coded(*codec, a, planted_paid()));
  // Over many blocks every token has its turn, a quarter of the time.
  std::vector<int> count(kBlockTokens);
  for (uint64_t seed = 0; seed < 200; ++seed) {
    const uint64_t chosen = refined(*codec, oracle::normal_rows(kBlockTokens, 64, 1000 + seed));
    for (int t = 0; t < kBlockTokens; ++t) count[static_cast<size_t>(t)] += static_cast<int>(chosen >> t & 1);
  }
  for (int n : count) {
    EXPECT_GT(n, 50 - 5 * 6);  // 5 standard deviations of 200 draws at 1/4
    EXPECT_LT(n, 50 + 5 * 6);
  }
}

TEST(A2Codec, NonFiniteElementsDoNotSpread) {
  const int d = 64;
  const auto codec = codec_of("kivi2+a2", d);
  std::vector<float> rows = oracle::normal_rows(kBlockTokens, d, 39);
  rows[3 * d + 7] = NAN;
  rows[9 * d + 7] = INFINITY;
  rows[37 * d + 1] = -INFINITY;
  for (float x : decoded(*codec, coded(*codec, rows, planted_paid()))) ASSERT_TRUE(std::isfinite(x));
}

}  // namespace
}  // namespace headq
