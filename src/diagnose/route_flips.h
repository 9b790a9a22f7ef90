#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "diagnose/readings.h"
#include "diagnose/stats.h"
#include "diagnose/superiority.h"

namespace headq {

// Experiment 8: where the Fisher measure and the divergence part. Each query read through each of
// some codecs is a case; cases are split by the entropy H of the dense attention and by whether the
// likeliest token changed.

// Bands of H in nats: low below the first, middle below the second, high above. e^H tokens share
// the attention: less than 2.7, less than 20, more.
inline constexpr std::array<double, 2> kEntropyBounds = {1.0, 3.0};
inline constexpr std::array<const char*, 3> kEntropyBands = {"low", "middle", "high"};
inline constexpr size_t kLowEntropy = 0;

std::vector<CodecSpec> route_flip_specs();
// nib2 is read, too, where heads have it.

// What a set of cases holds. Shares and figures of an empty set, and the intervals of figures (not
// of shares) that come from fewer than kFewestClusters clusters, have no value.
struct Regime {
  static constexpr std::ptrdiff_t kFewestClusters = 5;

  std::string entropy;  // one of kEntropyBands, or "all"
  std::string route;    // "kept", "flipped" or "all"
  size_t n_cases = 0;
  Interval share;           // of cases
  Interval damage_share;    // of the summed KL
  Interval kl;              // mean
  Interval fisher;          // mean
  Interval fisher_over_kl;  // ratio of the sums: 1 where the second order is all there is
  Interval correlation;     // Spearman of Fisher and KL over the cases
};

struct LayerRoutes {
  // A layer is said to have the low-entropy regime when its flips at low entropy hold at least
  // this share of its damage and the Fisher measure is below kUnderestimate of their KL, the whole
  // interval of the ratio included.
  static constexpr double kNamedShare = 0.10;
  static constexpr double kUnderestimate = 0.75;

  int layer = 0;
  Regime all;
  Regime low_entropy;          // all cases of the lowest band
  Regime flipped;              // all flips
  Regime low_entropy_flipped;  // flips of the lowest band
  bool has_low_entropy_regime = false;
};

struct RouteFlips {
  std::vector<std::string> codecs;
  size_t n_cases = 0;
  Regime all;
  std::vector<Regime> regimes;      // bands, kept and flipped of each; bootstrap over KV heads
  std::vector<LayerRoutes> layers;  // bootstrap over queries
};

RouteFlips route_flips(std::span<const HeadReadings> heads, const BootstrapOptions& options);

}  // namespace headq
