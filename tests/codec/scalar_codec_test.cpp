#include "codec/scalar_codec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "codec/codec.h"
#include "codec/transform.h"
#include "headq/error.h"
#include "oracle/compare.h"
#include "oracle/quant.h"
#include "oracle/rows.h"

namespace headq {
namespace {

using Doubles = std::vector<double>;

Doubles to_doubles(const std::vector<float>& x) { return {x.begin(), x.end()}; }

// A profile with a known basis: query_basis are orthonormal rows.
HeadProfile planted_profile(int d) {
  HeadProfile head;
  head.query_basis = random_basis(d, std::min(d, kMaxSideRank), 11);
  head.key_basis = random_basis(d, std::min(d, kMaxSideRank), 12);
  for (int c = 0; c < d; ++c) {
    head.key_mean.push_back(c == 5 ? 40.0f : 0.25f * static_cast<float>(c % 7));
    head.query_energy.push_back(1.0f + static_cast<float>((c * 5) % d));
    head.key_variance.push_back(1.0f);
    head.value_variance.push_back(1.0f + static_cast<float>((c * 3) % d));
  }
  return head;
}

std::vector<float> coded_rows(const Codec& codec, const std::vector<float>& rows,
                              uint64_t valid = ~uint64_t{0}) {
  std::vector<uint8_t> block(codec.layout().bytes(), 0xee);
  codec.encode(rows.data(), valid, block.data());
  std::vector<float> out(rows.size());
  for (int t = 0; t < kBlockTokens; ++t) {
    codec.decode(block.data(), t, out.data() + t * codec.head_dim());
  }
  return out;
}

class ScalarCodecDims : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(HeadDims, ScalarCodecDims, testing::Values(16, 17, 64, 80, 96, 128, 256));

TEST_P(ScalarCodecDims, KeysArePerChannelMinMax) {
  const int d = GetParam();
  const std::vector<float> rows = oracle::awkward_rows(kBlockTokens, d, 1);
  for (int bits : {2, 4, 8}) {
    const auto codec =
        make_key_codec(CodecSpec::parse("kivi" + std::to_string(bits)), d, nullptr, 0, 0);
    const Doubles wanted = oracle::per_channel(to_doubles(rows), kBlockTokens, d, bits);
    EXPECT_TRUE(oracle::close(to_doubles(coded_rows(*codec, rows)), wanted, 1e-5)) << bits;
  }
}

TEST_P(ScalarCodecDims, ValuesArePerTokenMinMaxOver64Channels) {
  const int d = GetParam();
  const std::vector<float> rows = oracle::awkward_rows(kBlockTokens, d, 2);
  for (int bits : {2, 4, 8}) {
    const auto codec =
        make_value_codec(CodecSpec::parse("kivi" + std::to_string(bits)), d, nullptr);
    const Doubles wanted = oracle::per_token(to_doubles(rows), kBlockTokens, d, bits, 64);
    EXPECT_TRUE(oracle::close(to_doubles(coded_rows(*codec, rows)), wanted, 1e-5)) << bits;
  }
}

TEST_P(ScalarCodecDims, TokenCodecsRotateAndCentre) {
  const int d = GetParam();
  const HeadProfile head = planted_profile(d);
  const std::vector<float> rows = oracle::awkward_rows(kBlockTokens, d, 3);
  for (const char* text : {"token2", "token4", "token4h", "token2c", "token4hc"}) {
    const CodecSpec spec = CodecSpec::parse(text);
    const auto codec = make_key_codec(spec, d, &head, 0, 0);
    Doubles x;
    for (int t = 0; t < kBlockTokens; ++t) {
      Doubles row;
      for (int c = 0; c < d; ++c) {
        const float mean = spec.centred ? head.key_mean[static_cast<size_t>(c)] : 0.0f;
        row.push_back(rows[static_cast<size_t>(t * d + c)] - mean);
      }
      if (spec.hadamard) row = oracle::hadamard_row(row);
      x.insert(x.end(), row.begin(), row.end());
    }
    const Doubles coded = oracle::per_token(x, kBlockTokens, d, spec.bits, 32);
    Doubles wanted;
    for (int t = 0; t < kBlockTokens; ++t) {
      Doubles row(coded.begin() + t * d, coded.begin() + (t + 1) * d);
      if (spec.hadamard) row = oracle::hadamard_row(row);
      for (int c = 0; c < d; ++c) {
        const float mean = spec.centred ? head.key_mean[static_cast<size_t>(c)] : 0.0f;
        wanted.push_back(row[static_cast<size_t>(c)] + mean);
      }
    }
    // A rounding difference can move a value across a code boundary, so compare most elements.
    const std::vector<float> got = coded_rows(*codec, rows);
    const auto diff = oracle::difference(std::span<const double>(to_doubles(got)),
                                         std::span<const double>(wanted));
    EXPECT_LE(diff.rms, 2e-3 * diff.rms_wanted) << text;
    EXPECT_GT(diff.rms_wanted, 0.0);
  }
}

TEST_P(ScalarCodecDims, SideCodeIsTheQuantisedProjectionOfTheResidual) {
  const int d = GetParam();
  const HeadProfile head = planted_profile(d);
  const Doubles u = to_doubles(head.query_basis);
  const std::vector<float> rows = oracle::normal_rows(kBlockTokens, d, 4);
  const Doubles base = oracle::per_channel(to_doubles(rows), kBlockTokens, d, 2);
  for (const char* text : {"kivi2+hq4x4", "kivi2-hq4x4", "kivi2+hq1x4", "kivi2+hq16x4"}) {
    const CodecSpec spec = CodecSpec::parse(text);
    const auto codec = make_key_codec(spec, d, &head, 0, 0);
    const Doubles wanted = oracle::with_side_code(to_doubles(rows), base, kBlockTokens, d, u,
                                                  spec.side_rank, spec.side_sign);
    EXPECT_TRUE(oracle::close(to_doubles(coded_rows(*codec, rows)), wanted, 2e-3)) << text;
  }
}

TEST(ScalarCodec, BitsPerElementAreTheSpecsArithmetic) {
  const HeadProfile head64 = planted_profile(64);
  const auto bits = [&](const char* text, bool value) {
    const CodecSpec spec = CodecSpec::parse(text);
    const auto codec =
        value ? make_value_codec(spec, 64, &head64) : make_key_codec(spec, 64, &head64, 0, 0);
    return static_cast<double>(codec->layout().bytes()) * 8.0 / (64.0 * kBlockTokens);
  };
  EXPECT_DOUBLE_EQ(bits("kivi2", false), 2.5);  // 2 + 32 / 64 tokens
  EXPECT_DOUBLE_EQ(bits("kivi3", false), 3.5);
  EXPECT_DOUBLE_EQ(bits("kivi4", false), 4.5);
  EXPECT_DOUBLE_EQ(bits("kivi8", false), 8.5);
  EXPECT_DOUBLE_EQ(bits("kivi2", true), 2.5);  // 2 + 32 / 64 channels
  EXPECT_DOUBLE_EQ(bits("kivi3", true), 3.5);
  EXPECT_DOUBLE_EQ(bits("token2", false), 3.0);  // 2 + 32 / 32 channels
  EXPECT_DOUBLE_EQ(bits("token4", true), 5.0);
  EXPECT_DOUBLE_EQ(bits("kivi2w10", false), 2.5 + 10.0 * 2 / 64);
  EXPECT_DOUBLE_EQ(bits("kivi2w9", false), 2.5 + 10.0 * 2 / 64);  // half of a nibble is idle
  EXPECT_DOUBLE_EQ(bits("kivi3w10", false), 3.5 + 10.0 * 2 / 64);
  EXPECT_DOUBLE_EQ(bits("kivi4w5", false), 4.5 + 5.0 * 4 / 64);
  EXPECT_DOUBLE_EQ(bits("kivi2+hq4x4", false), 2.5 + 4.0 * 4 / 64 + 4.0 * 32 / (64 * 64));
}

TEST(ScalarCodec, ThreeBitsGiveFourToTheChannelsWithMoreVisibleEnergy) {
  const int d = 64;
  HeadProfile head = planted_profile(d);
  for (int c = 0; c < d; ++c) {
    const size_t i = static_cast<size_t>(c);
    head.query_energy[i] = c % 2 == 0 ? 9.0f : 1.0f;
    head.key_variance[i] = 1.0f;
    head.value_variance[i] = c % 2 == 1 ? 9.0f : 1.0f;
  }
  const std::vector<float> rows = oracle::normal_rows(kBlockTokens, d, 5);
  const auto error = [&](const std::vector<float>& coded, int parity) {
    double sum = 0.0;
    for (int t = 0; t < kBlockTokens; ++t) {
      for (int c = parity; c < d; c += 2) {
        sum += std::pow(
            coded[static_cast<size_t>(t * d + c)] - rows[static_cast<size_t>(t * d + c)], 2);
      }
    }
    return sum;
  };
  const CodecSpec spec = CodecSpec::parse("kivi3");
  const auto keys = coded_rows(*make_key_codec(spec, d, &head, 0, 0), rows);
  EXPECT_GT(error(keys, 1), 10.0 * error(keys, 0));  // 4 bits against 2: 25 times in theory
  const auto values = coded_rows(*make_value_codec(spec, d, &head), rows);
  EXPECT_GT(error(values, 0), 10.0 * error(values, 1));
}

TEST(ScalarCodec, WideChannelsAreThoseWithTheMostVisibleEnergy) {
  const int d = 64;
  HeadProfile head = planted_profile(d);
  for (size_t c = 0; c < d; ++c) {  // the product decides: channels 3, 17, 40
    head.query_energy[c] = c == 3 || c == 40 ? 9.0f : 1.0f;
    head.key_variance[c] = c == 17 ? 20.0f : c == 5 ? 2.0f : 1.0f;
  }
  const std::vector<float> rows = oracle::normal_rows(kBlockTokens, d, 5);
  const auto coded = [&](const char* text) {
    return coded_rows(*make_key_codec(CodecSpec::parse(text), d, &head, 0, 0), rows);
  };
  const struct {
    const char* wide;
    const char* narrow_like;
    const char* wide_like;
  } cases[] = {{"kivi2w3", "kivi2", "kivi4"}, {"kivi4w3", "kivi4", "kivi8"}};
  for (const auto& test : cases) {
    const auto mixed = coded(test.wide), narrow = coded(test.narrow_like);
    const auto wide = coded(test.wide_like);
    for (int t = 0; t < kBlockTokens; ++t) {
      for (int c = 0; c < d; ++c) {
        const size_t i = static_cast<size_t>(t * d + c);
        const bool is_wide = c == 3 || c == 17 || c == 40;
        ASSERT_EQ(mixed[i], is_wide ? wide[i] : narrow[i]) << test.wide << " " << t << " " << c;
      }
    }
  }
}

TEST(ScalarCodec, MoreWideChannelsThanThereAreAreRefused) {
  const HeadProfile head = planted_profile(32);
  EXPECT_NO_THROW(make_key_codec(CodecSpec::parse("kivi3w16"), 32, &head, 0, 0));
  EXPECT_THROW(make_key_codec(CodecSpec::parse("kivi3w17"), 32, &head, 0, 0), Error);
  EXPECT_THROW(make_key_codec(CodecSpec::parse("kivi2w33"), 32, &head, 0, 0), Error);
  EXPECT_THROW(make_key_codec(CodecSpec::parse("kivi2w1"), 32, nullptr, 0, 0), Error);
}

TEST(ScalarCodec, InvalidRowsDoNotCount) {
  const int d = 64;
  for (const char* text : {"kivi2", "kivi4+hq4x4@random", "token4h"}) {
    const auto codec = make_key_codec(CodecSpec::parse(text), d, nullptr, 0, 0);
    std::vector<float> rows = oracle::normal_rows(kBlockTokens, d, 6);
    const uint64_t valid = ~uint64_t{0} << 4;
    std::vector<uint8_t> clean(codec->layout().bytes()), spoiled(codec->layout().bytes());
    codec->encode(rows.data(), valid, clean.data());
    for (int i = 0; i < 4 * d; ++i) rows[static_cast<size_t>(i)] = i % 2 == 0 ? 1e6f : NAN;
    codec->encode(rows.data(), valid, spoiled.data());
    EXPECT_EQ(clean, spoiled) << text;
    codec->encode(rows.data(), valid | 1, spoiled.data());
    EXPECT_NE(clean, spoiled) << text;
  }
}

TEST(ScalarCodec, CodesComeBackTheSameFromDecodedHalves) {
  const int d = 64;
  for (const char* text : {"kivi2", "kivi4", "token2", "token4"}) {
    for (const bool value : {false, true}) {
      const CodecSpec spec = CodecSpec::parse(text);
      const auto codec =
          value ? make_value_codec(spec, d, nullptr) : make_key_codec(spec, d, nullptr, 0, 0);
      std::vector<float> rows = oracle::awkward_rows(kBlockTokens, d, 7);
      std::vector<uint8_t> first(codec->layout().bytes()), second(codec->layout().bytes());
      codec->encode(rows.data(), ~uint64_t{0}, first.data());
      for (int t = 0; t < kBlockTokens; ++t) codec->decode(first.data(), t, rows.data() + t * d);
      for (float& x : rows) x = half_to_float(float_to_half(x));
      codec->encode(rows.data(), ~uint64_t{0}, second.data());
      EXPECT_EQ(std::memcmp(first.data(), second.data(), codec->layout().code_bytes()), 0)
          << text << (value ? " values" : " keys");
    }
  }
}

// Share of nibbles in which two blocks differ.
double nibbles_apart(const Codec& codec, const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  size_t apart = 0;
  for (size_t i = 0; i < codec.layout().code_bytes(); ++i) {
    apart += ((a[i] ^ b[i]) & 0x0f) != 0;
    apart += ((a[i] ^ b[i]) & 0xf0) != 0;
  }
  return static_cast<double>(apart) / static_cast<double>(2 * codec.layout().code_bytes());
}

TEST(ScalarCodec, SideCodesComeBackFromDecodedHalves) {
  for (int d : {32, 64, 128}) {
    const HeadProfile head = planted_profile(d);
    for (const char* text : {"kivi2+hq4x4", "kivi2-hq4x4", "kivi4+hq1x4", "token2h+hq4x4"}) {
      const auto codec = make_key_codec(CodecSpec::parse(text), d, &head, 0, 0);
      std::vector<float> rows = oracle::normal_rows(kBlockTokens, d, 17);
      const uint64_t valid = ~uint64_t{0} << 4;
      std::vector<uint8_t> first(codec->layout().bytes()), second(codec->layout().bytes());
      codec->encode(rows.data(), valid, first.data());
      for (int t = 0; t < kBlockTokens; ++t) codec->decode(first.data(), t, rows.data() + t * d);
      for (float& x : rows) x = half_to_float(float_to_half(x));
      codec->reencode(rows.data(), valid, second.data());
      const double again = nibbles_apart(*codec, first, second);
      // The alternation contracts less the larger rank / head_dim is; 4 of 32 leaves a few.
      EXPECT_LE(again, d > 32 ? 0.0 : 0.02) << text << ", head_dim " << d;
      codec->encode(rows.data(), valid, second.data());
      const double plain = nibbles_apart(*codec, first, second);
      EXPECT_GE(plain, again) << text << ", head_dim " << d;
      if (codec->layout().n_groups < d  /* 2 bits */) {
        EXPECT_GT(plain, again) << text << ", head_dim " << d << ": nothing was gained";
      }
    }
  }
}

TEST(ScalarCodec, NonFiniteElementsDoNotSpread) {
  const int d = 64;
  for (const char* text : {"kivi2", "kivi8", "token4h", "kivi2+hq4x4@random"}) {
    const auto codec = make_key_codec(CodecSpec::parse(text), d, nullptr, 0, 0);
    std::vector<float> rows = oracle::normal_rows(kBlockTokens, d, 8);
    rows[3 * d + 7] = NAN;
    rows[9 * d + 7] = INFINITY;
    rows[20 * d + 1] = -INFINITY;
    for (float x : coded_rows(*codec, rows)) ASSERT_TRUE(std::isfinite(x)) << text;
  }
}

TEST(ScalarCodec, HalvesOfNibblesSumToTheScoreOfTheDecodedRow) {
  const int d = 80;
  const HeadProfile head = planted_profile(d);
  const std::vector<float> rows = oracle::normal_rows(kBlockTokens, d, 9);
  const std::vector<float> q = oracle::normal_rows(1, d, 10);
  for (const char* text : {"kivi2", "kivi3", "kivi8", "token4hc", "token2", "kivi2+hq4x4",
                           "kivi2-hq4x4", "token2c+hq4x4"}) {
    const auto codec = make_key_codec(CodecSpec::parse(text), d, &head, 0, 0);
    std::vector<uint8_t> block(codec->layout().bytes());
    codec->encode(rows.data(), ~uint64_t{0}, block.data());
    const Half* params = codec->layout().params(block.data());

    std::vector<float> coef(static_cast<size_t>(codec->n_coef()));
    std::vector<float> zero_coef(codec->segments().size());
    const size_t n_halves = static_cast<size_t>(codec->n_halves());
    std::vector<float> halves(n_halves), factors(n_halves), zeros(coef.size());
    const double shared = codec->analyse(q.data(), coef.data(), zero_coef.data());
    std::vector<float> block_params(static_cast<size_t>(codec->layout().n_params));
    for (size_t i = 0; i < block_params.size(); ++i) block_params[i] = half_to_float(params[i]);
    ASSERT_TRUE(codec->is_linear());
    codec->spread(coef.data(), halves.data());
    codec->block_factors(block_params.data(), factors.data(), zeros.data());
    const auto product = [&](int i) {
      return static_cast<double>(halves[static_cast<size_t>(i)]) * factors[static_cast<size_t>(i)];
    };
    double constant = 0.0;
    for (size_t i = 0; i < coef.size(); ++i) constant += static_cast<double>(coef[i]) * zeros[i];

    Doubles got, wanted;
    for (int t = 0; t < kBlockTokens; ++t) {
      double score = shared + constant;
      for (size_t s = 0; s < codec->segments().size(); ++s) {
        const Segment& segment = codec->segments()[s];
        double sum = 0.0;
        for (int g = segment.group_begin; g < segment.group_end; ++g) {
          const int n = block[static_cast<size_t>(g * kGroupBytes + t % 32)] >> (t / 32 * 4) & 15;
          sum += product(segment.half_index(g, 0)) * (n & 3) + product(segment.half_index(g, 1)) * (n >> 2);
        }
        if (segment.token_params >= 0) {
          score += half_to_float(params[segment.token_params + t]) * sum +
                   half_to_float(params[segment.token_params + kBlockTokens + t]) * zero_coef[s];
        } else {
          score += sum;
        }
      }
      got.push_back(score);
      std::vector<float> row(static_cast<size_t>(d));
      codec->decode(block.data(), t, row.data());
      double dot = 0.0;
      for (int i = 0; i < d; ++i)
        dot += static_cast<double>(q[static_cast<size_t>(i)]) * row[static_cast<size_t>(i)];
      wanted.push_back(dot);
    }
    EXPECT_TRUE(oracle::close(got, wanted, 1e-4)) << text;
  }
}

TEST(ScalarCodec, SpecsThatNeedAProfileSaySo) {
  EXPECT_THROW(make_key_codec(CodecSpec::parse("kivi2+hq4x4"), 64, nullptr, 0, 0), Error);
  EXPECT_THROW(make_key_codec(CodecSpec::parse("kivi2"), 8, nullptr, 0, 0), Error);
  EXPECT_THROW(make_value_codec(CodecSpec::parse("kivi2"), 257, nullptr), Error);
  HeadProfile head = planted_profile(64);
  head.query_basis.resize(2 * 64);
  EXPECT_THROW(make_key_codec(CodecSpec::parse("kivi2+hq4x4"), 64, &head, 0, 0), Error);
  EXPECT_EQ(make_key_codec(CodecSpec::parse("dense"), 64, nullptr, 0, 0), nullptr);
}

TEST(Transform, RandomBasesAreOrthonormalAndSeeded) {
  for (int d : {16, 80}) {
    const std::vector<float> u = random_basis(d, 8, 5);
    for (int i = 0; i < 8; ++i) {
      for (int j = 0; j < 8; ++j) {
        double dot = 0.0;
        for (int c = 0; c < d; ++c)
          dot += static_cast<double>(u[static_cast<size_t>(i * d + c)]) *
                 u[static_cast<size_t>(j * d + c)];
        EXPECT_NEAR(dot, i == j ? 1.0 : 0.0, 1e-6);
      }
    }
    EXPECT_EQ(u, random_basis(d, 8, 5));
    EXPECT_NE(u, random_basis(d, 8, 6));
  }
}

}  // namespace
}  // namespace headq
