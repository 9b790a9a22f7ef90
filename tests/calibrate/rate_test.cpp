#include "calibrate/rate.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

namespace headq {
namespace {

std::vector<double> falling_spectrum(int n, double ratio) {
  std::vector<double> out;
  for (double v = 100.0; static_cast<int>(out.size()) < n; v *= ratio) out.push_back(v);
  return out;
}

TEST(RateCurve, StartsAtThePowerAndFalls) {
  const std::vector<double> spectrum = falling_spectrum(24, 0.8);
  const RateCurve curve(spectrum);
  EXPECT_EQ(curve.max_nibbles(), 48);
  EXPECT_NEAR(curve.distortion(0), std::accumulate(spectrum.begin(), spectrum.end(), 0.0), 1e-9);
  for (int n = 1; n <= curve.max_nibbles(); ++n) {
    EXPECT_LE(curve.distortion(n), curve.distortion(n - 1)) << n;
  }
}

// D(R) of independent Gaussians (reverse water-filling) is below what any code reaches.
TEST(RateCurve, StaysAboveTheRateDistortionBound) {
  const std::vector<double> spectrum = falling_spectrum(24, 0.8);
  const RateCurve curve(spectrum);
  for (int n : {1, 6, 12, 24, 40}) {
    double low = 0.0, high = spectrum[0];
    for (int i = 0; i < 200; ++i) {
      const double water = (low + high) / 2;
      double bits = 0.0;
      for (double v : spectrum) bits += std::max(0.0, 0.5 * std::log2(v / water));
      (bits > 4.0 * n ? low : high) = water;
    }
    double bound = 0.0;
    for (double v : spectrum) bound += std::min(v, high);
    EXPECT_GE(curve.distortion(n), bound) << n;
    EXPECT_LE(curve.distortion(n), 2.5 * bound) << n;
  }
}

TEST(RateCurve, CutsCoordinatesInOrder) {
  const std::vector<double> spectrum = falling_spectrum(32, 0.7);
  const RateCurve curve(spectrum);
  for (int n = 1; n <= curve.max_nibbles(); ++n) {
    const std::vector<NibbleCut> cuts = curve.cut(n);
    ASSERT_LE(static_cast<int>(cuts.size()), n);
    int end = 0;
    for (size_t g = 0; g < cuts.size(); ++g) {
      const bool again = g > 0 && cuts[g] == cuts[g - 1];
      if (again) {
        EXPECT_EQ(cuts[g].end - cuts[g].first, 1);
        EXPECT_FALSE(g > 1 && cuts[g] == cuts[g - 2]);
      } else {
        EXPECT_EQ(cuts[g].first, end);
      }
      end = cuts[g].end;
      EXPECT_LE(end, 32);
    }
  }
}

TEST(RateCurve, StrongCoordinatesGetMoreNibbles) {
  const RateCurve curve(std::vector<double>{1e6, 1.0, 1.0, 1.0, 1.0, 1e-9});
  const std::vector<NibbleCut> cuts = curve.cut(4);
  ASSERT_EQ(cuts.size(), 4u);
  EXPECT_EQ(cuts[0], (NibbleCut{0, 1}));
  EXPECT_EQ(cuts[1], (NibbleCut{0, 1}));  // its second nibble
  EXPECT_EQ(cuts[3].end, 5);              // the last coordinate has none
}

TEST(RateCurve, KeepsTheLimitOnGroups) {
  const std::vector<double> flat(32, 1.0);
  for (int most : {1, 2, 4}) {
    for (const NibbleCut& cut : RateCurve(flat, most).cut(6)) {
      EXPECT_LE(cut.end - cut.first, most);
    }
  }
}

TEST(AllocateNibbles, SpendsExactlyTheTotal) {
  std::vector<RateCurve> curves;
  for (double ratio : {0.9, 0.7, 0.5}) curves.emplace_back(falling_spectrum(16, ratio));
  const std::vector<double> weights(3, 1.0);
  for (int total : {3, 10, 31, 96}) {
    const std::vector<int> n = allocate_nibbles(curves, weights, total);
    EXPECT_EQ(std::accumulate(n.begin(), n.end(), 0), total);
    for (int x : n) EXPECT_GE(x, 1);
  }
  const std::vector<int> most = allocate_nibbles(curves, weights, 1000);
  EXPECT_EQ(std::accumulate(most.begin(), most.end(), 0), 96);
}

TEST(AllocateNibbles, GivesMoreToWhatWeighsMore) {
  const std::vector<RateCurve> curves(3, RateCurve(falling_spectrum(16, 0.8)));
  const std::vector<int> alike = allocate_nibbles(curves, std::vector<double>{1.0, 1.0, 1.0}, 24);
  EXPECT_NEAR(alike[0], alike[2], 1);
  const std::vector<int> n = allocate_nibbles(curves, std::vector<double>{1.0, 8.0, 64.0}, 24);
  EXPECT_LT(n[0], n[1]);
  EXPECT_LT(n[1], n[2]);
}

}  // namespace
}  // namespace headq
