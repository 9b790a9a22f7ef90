#include "codec/trellis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

#include "codec/nib_codec.h"
#include "core/half.h"
#include "headq/error.h"
#include "sample_nib.h"

namespace headq {
namespace {

using testing::sample_nib;

Trellis trellis_of(const NibCode& code, const CodecKernels& kernels = kScalarCodecKernels) {
  return Trellis(code.n_coords(), code.reach, nib_table(code), kernels);
}

std::vector<float> normal_row(int n, std::mt19937_64& random) {
  std::normal_distribution<float> normal;
  std::vector<float> y(static_cast<size_t>(n + 15));  // kernels may read whole vectors
  for (int c = 0; c < n; ++c) y[static_cast<size_t>(c)] = normal(random);
  return y;
}

// |y - sum of codewords|^2 from the definition, in double.
double error_of(const NibCode& code, const std::vector<float>& y, const std::vector<uint8_t>& n) {
  std::vector<double> left(y.begin(), y.begin() + code.n_coords());
  size_t term = 0;
  for (size_t g = 0; g < n.size(); ++g) {
    for (int c = code.reach[2 * g]; c < code.reach[2 * g + 1]; ++c, ++term) {
      left[static_cast<size_t>(c)] -= static_cast<double>(code.scale[term]) * code.codebook[term * 16 + n[g]];
    }
  }
  double sum = 0.0;
  for (double e : left) sum += e * e;
  return sum;
}

TEST(Trellis, FindsTheBestOfAllNibbles) {
  std::mt19937_64 random(1);
  for (int width : {1, 2, 3}) {
    const NibCode code = sample_nib(16, 3, width, static_cast<uint64_t>(width));
    const Trellis trellis = trellis_of(code);
    const TrellisSearch search(trellis);
    for (int row = 0; row < 20; ++row) {
      const std::vector<float> y = normal_row(code.n_coords(), random);
      double least = std::numeric_limits<double>::infinity();
      for (unsigned all = 0; all < 4096; ++all) {
        const std::vector<uint8_t> n = {static_cast<uint8_t>(all & 15),
                                        static_cast<uint8_t>(all >> 4 & 15),
                                        static_cast<uint8_t>(all >> 8)};
        least = std::min(least, error_of(code, y, n));
      }
      std::vector<uint8_t> found(3);
      search.encode(y.data(), found.data());
      EXPECT_LE(error_of(code, y, found), least * (1 + 1e-5) + 1e-6) << width << ", row " << row;
    }
  }
}

TEST(Trellis, EveryLevelFindsTheSameNibbles) {
  std::mt19937_64 random(2);
  const auto codes = {sample_nib(64, 32, 2, 3), sample_nib(96, 7, 8, 4), sample_nib(16, 1, 1, 5),
                      sample_nib(256, 256, 1, 6)};
  for (const NibCode& code : codes) {
    const Trellis reference = trellis_of(code);
    const TrellisSearch reference_search(reference);
    for (Isa isa : available_isas()) {
      const Trellis trellis = trellis_of(code, codec_kernels_for(isa));
      const TrellisSearch search(trellis);
      for (int row = 0; row < 50; ++row) {
        std::vector<float> y = normal_row(code.n_coords(), random);
        if (row == 0) std::fill(y.begin(), y.end(), 0.0f);
        std::vector<uint8_t> wanted(static_cast<size_t>(code.n_nibbles())), got(wanted);
        reference_search.encode(y.data(), wanted.data());
        search.encode(y.data(), got.data());
        ASSERT_EQ(got, wanted) << isa_name(isa);
      }
    }
  }
}

// Of codewords that are equal the smallest is taken, at every level.
TEST(Trellis, TiesGoToTheSmallestNibble) {
  NibCode code = sample_nib(16, 4, 2, 7);
  std::fill(code.codebook.begin(), code.codebook.end(), int8_t{0});
  for (Isa isa : available_isas()) {
    std::vector<uint8_t> n(4, 9);
    const Trellis trellis = trellis_of(code, codec_kernels_for(isa));
    TrellisSearch(trellis).encode(std::vector<float>(16, 0.5f).data(), n.data());
    EXPECT_EQ(n, std::vector<uint8_t>(4, 0)) << isa_name(isa);
  }
}

TEST(Trellis, TransformsAlikeAtEveryLevel) {
  constexpr int kIn = 80, kStride = 112;  // 64 + 32 + 16
  std::mt19937_64 random(8);
  const std::vector<float> columns = normal_row(kIn * kStride, random), x = normal_row(kIn, random);
  std::vector<float> wanted(kStride);
  kScalarCodecKernels.transform(columns.data(), kIn, kStride, x.data(), wanted.data());
  for (int c = 0; c < kStride; ++c) {
    double sum = 0.0;
    for (int i = 0; i < kIn; ++i) {
      sum += static_cast<double>(x[static_cast<size_t>(i)]) * columns[static_cast<size_t>(i * kStride + c)];
    }
    EXPECT_NEAR(wanted[static_cast<size_t>(c)], sum, 1e-4);
  }
  for (Isa isa : available_isas()) {
    std::vector<float> got(kStride);
    codec_kernels_for(isa).transform(columns.data(), kIn, kStride, x.data(), got.data());
    EXPECT_EQ(got, wanted) << isa_name(isa);
  }
}

TEST(Trellis, HalvesAreRoundedAlikeAtEveryLevel) {
  std::vector<float> x = {0.0f, -0.0f, 1.0f, 65504.0f, 65519.9f, 65520.0f, -1e9f, INFINITY, -INFINITY, NAN};
  for (uint32_t h = 0; h < 0x7c00u; h += 3) {  // halves, the middle between two of them and its neighbours
    const float low = half_to_float(static_cast<Half>(h)), high = half_to_float(static_cast<Half>(h + 1));
    const float middle = 0.5f * (low + high);
    if (h + 1 == 0x7c00u) break;
    x.insert(x.end(), {low, middle, -std::nextafter(middle, 0.0f), std::nextafter(middle, 1e9f)});
  }
  for (Isa isa : available_isas()) {
    for (size_t n : {x.size(), x.size() - 1, size_t{33}, size_t{15}, size_t{3}}) {
      std::vector<Half> got(n + 1, 0x1234);
      codec_kernels_for(isa).to_halves(x.data(), n, got.data());
      for (size_t i = 0; i < n; ++i) ASSERT_EQ(got[i], float_to_half(x[i])) << isa_name(isa) << " of " << x[i];
      EXPECT_EQ(got[n], 0x1234) << isa_name(isa);
    }
  }
}

TEST(Trellis, RefusesChainsThatItCannotSearch) {
  const std::vector<float> table(16 * 6, 0.0f);
  const auto make = [&](std::vector<int32_t> reach) { Trellis(4, reach, table); };
  EXPECT_THROW(make({0, 4, 1, 2, 2, 3}), Error);  // nibbles 0 and 2 meet
  EXPECT_THROW(make({0, 5, 0, 1}), Error);        // behind the last coordinate
  EXPECT_THROW(make({0, 0, 0, 6}), Error);        // reaches nothing
  EXPECT_THROW(make({}), Error);
  EXPECT_THROW(make({0, 4}), Error);  // six terms in the table, four in the chain
  EXPECT_NO_THROW(make({0, 2, 1, 3, 2, 4}));
}

}  // namespace
}  // namespace headq
