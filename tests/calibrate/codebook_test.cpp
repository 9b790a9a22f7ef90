#include "calibrate/codebook.h"

#include <gtest/gtest.h>

#include <cmath>

#include "codec/nib_codec.h"
#include "core/random.h"

namespace headq {
namespace {

CodebookSamples white(size_t n, int n_coords, uint64_t seed) {
  CodebookSamples out;
  out.n_coords = n_coords;
  out.weights.assign(n, 1.0f);
  Random random(seed);
  for (size_t i = 0; i < n * static_cast<size_t>(n_coords); ++i) {
    out.rows.push_back(static_cast<float>(random.normal()));
  }
  return out;
}

std::vector<NibbleCut> cuts_of(int n_nibbles, int width) {
  std::vector<NibbleCut> cuts;
  for (int g = 0; g < n_nibbles; ++g) cuts.push_back({g * width, (g + 1) * width});
  return cuts;
}

// Mean squared error a coordinate, on samples of its own.
double held_out_error(const NibCode& code, const CodebookSamples& samples) {
  const Trellis trellis(samples.n_coords, code.reach, nib_table(code));
  std::vector<uint8_t> nibbles(static_cast<size_t>(trellis.n_nibbles()));
  std::vector<float> decoded(static_cast<size_t>(samples.n_coords));
  double sum = 0.0;
  for (size_t i = 0; i < samples.n(); ++i) {
    trellis.encode(samples.row(i), nibbles.data());
    trellis.decode(nibbles.data(), decoded.data());
    for (size_t c = 0; c < decoded.size(); ++c) {
      const double e = static_cast<double>(samples.row(i)[c]) - decoded[c];
      sum += e * e;
    }
  }
  return sum / static_cast<double>(samples.n()) / samples.n_coords;
}

// 16 levels for one Gaussian coordinate: the Lloyd-Max quantizer has error 0.01154 (Max 1960).
TEST(FitCodebook, OneCoordinateIsLloydMax) {
  const auto fitted = fit_codebook(white(8192, 4, 1), cuts_of(4, 1), {.trellis = false});
  EXPECT_NEAR(held_out_error(fitted.code, white(8192, 4, 2)), 0.01154, 0.0006);
}

// What the trellis gains over separate codebooks, and that neither beats the bound 2^(-2 R).
TEST(FitCodebook, TrellisGainsOnWhiteNoise) {
  const CodebookSamples train = white(8192, 16, 3), test = white(4096, 16, 4);
  const struct {
    int width;
    double least_gain_db;
  } kCases[] = {{1, 1.4}, {2, 0.5}, {4, 0.1}};
  for (const auto& [width, least_gain_db] : kCases) {
    const auto cuts = cuts_of(16 / width, width);
    const double plain = held_out_error(fit_codebook(train, cuts, {.trellis = false}).code, test);
    const double trellis = held_out_error(fit_codebook(train, cuts, {}).code, test);
    EXPECT_GT(10 * std::log10(plain / trellis), least_gain_db) << width;
    EXPECT_GT(trellis, std::exp2(-8.0 / width)) << width;
  }
}

TEST(FitCodebook, ReportsTheErrorOfItsSamples) {
  const CodebookSamples samples = white(2048, 8, 5);
  const auto fitted = fit_codebook(samples, cuts_of(4, 2), {});
  EXPECT_NEAR(fitted.error, 8 * held_out_error(fitted.code, samples), 1e-6);
}

TEST(FitCodebook, ASecondNibbleCodesWhatTheFirstLeaves) {
  const auto fitted = fit_codebook(white(8192, 2, 6), std::vector<NibbleCut>{{0, 1}, {0, 1}, {1, 2}}, {});
  CodebookSamples test = white(4096, 2, 7);
  const Trellis trellis(2, fitted.code.reach, nib_table(fitted.code));
  double first = 0.0;
  for (size_t i = 0; i < test.n(); ++i) {
    uint8_t nibbles[3];
    float y[2];
    trellis.encode(test.row(i), nibbles);
    trellis.decode(nibbles, y);
    first += std::pow(test.row(i)[0] - y[0], 2) / static_cast<double>(test.n());
  }
  EXPECT_LT(first, 0.0012);  // a tenth of what one nibble leaves
}

// Rows that weigh nothing must not bend the codewords.
TEST(FitCodebook, WeightsDecideWhatCounts) {
  CodebookSamples samples = white(4096, 4, 8);
  for (size_t i = 0; i < samples.n(); i += 2) {
    samples.weights[i] = 0.0f;
    for (size_t c = 0; c < 4; ++c) samples.rows[i * 4 + c] = 50.0f;
  }
  const auto fitted = fit_codebook(samples, cuts_of(2, 2), {});
  EXPECT_LT(held_out_error(fitted.code, white(2048, 4, 9)), 0.11);
}

TEST(FitCodebook, SameInputGivesTheSameCode) {
  const CodebookSamples samples = white(1024, 8, 10);
  const auto a = fit_codebook(samples, cuts_of(4, 2), {}), b = fit_codebook(samples, cuts_of(4, 2), {});
  EXPECT_EQ(a.code, b.code);
  EXPECT_FALSE(fit_codebook(samples, cuts_of(4, 2), {.seed = 99}).code == a.code);
}

TEST(FitCodebook, ConstantSamplesAreCodedExactly) {
  CodebookSamples samples = white(256, 4, 11);
  std::fill(samples.rows.begin(), samples.rows.end(), 0.0f);
  EXPECT_EQ(fit_codebook(samples, cuts_of(2, 2), {}).error, 0.0);
}

}  // namespace
}  // namespace headq
