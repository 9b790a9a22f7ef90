#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "diagnose/reading.h"
#include "diagnose/stats.h"

namespace headq {

// Experiment 4: side codes on kivi2 along directions from four sources, rank by rank at equal bits.
// Does a basis calibrated on other text come close to one made of the text itself?

inline constexpr std::array<int, 8> kSideRanks = {1, 2, 3, 4, 6, 8, 12, 16};

enum class BasisSource { kQuery, kOracle, kKey, kRandom };
inline constexpr std::array<BasisSource, 4> kBasisSources = {
    BasisSource::kQuery, BasisSource::kOracle, BasisSource::kKey, BasisSource::kRandom};
inline constexpr int kRandomSeeds = 3;  // random bases are averaged over these

// "query", "oracle", "key", "random".
std::string to_string(BasisSource source);

// One KV head.
struct DeployabilityHead {
  double base_kl = 0;                                        // kivi2 without a side code
  std::vector<double> bits;                                  // [ranks]
  std::vector<std::array<double, kBasisSources.size()>> kl;  // [ranks]
};

DeployabilityHead deployability_head(const DenseAttention& dense);

struct DeployabilityRow {
  int rank = 0;
  double bits = 0;  // mean over heads
  struct Source {
    BasisSource source = BasisSource::kQuery;
    MeanError kl;        // over KV heads
    MeanError kl_ratio;  // geometric mean over heads of KL over that without a side code
    // Share of heads where the query basis does less harm than this one.
    MeanError query_wins;
  };
  std::array<Source, kBasisSources.size()> sources;
  // Of what the oracle basis gains over the random one in ln KL, the share that the query basis
  // reaches: means over heads of both, divided; bootstrap over heads.
  Interval reached;
};

struct Deployability {
  size_t n_heads = 0;
  MeanError base_kl;
  std::vector<DeployabilityRow> rows;
};

Deployability deployability(std::span<const DeployabilityHead> heads,
                            const BootstrapOptions& options);

}  // namespace headq
