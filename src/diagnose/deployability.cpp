#include "diagnose/deployability.h"

#include <fmt/format.h>

#include <cmath>
#include <numeric>

namespace headq {
namespace {

constexpr size_t kQueryAt = 0, kOracleAt = 1, kRandomAt = 3;

CodecSpec spec_of(int rank, const std::string& basis) {
  return CodecSpec::parse(fmt::format("kivi2+hq{}x4@{}", rank, basis));
}

double kl_of(const DenseAttention& dense, int rank, BasisSource source) {
  const HeadSample& sample = dense.sample();
  switch (source) {
    case BasisSource::kQuery:
      return mean_kl(dense.read_keys(spec_of(rank, "query"), sample.profile));
    case BasisSource::kOracle:
      return mean_kl(dense.read_keys(spec_of(rank, "query"), sample.oracle));
    case BasisSource::kKey:
      return mean_kl(dense.read_keys(spec_of(rank, "key"), sample.profile));
    case BasisSource::kRandom:
      break;
  }
  double sum = 0;
  for (int seed = 1; seed <= kRandomSeeds; ++seed) {
    sum += mean_kl(dense.read_keys(spec_of(rank, fmt::format("random:{}", seed)), sample.profile));
  }
  return sum / kRandomSeeds;
}

// Mean over the given heads of ln KL of one source at one rank.
double mean_log(std::span<const DeployabilityHead> heads, std::span<const size_t> indices,
                size_t rank, size_t source) {
  double sum = 0;
  for (size_t h : indices) sum += std::log(heads[h].kl[rank][source]);
  return sum / static_cast<double>(indices.size());
}

DeployabilityRow row_of(std::span<const DeployabilityHead> heads, size_t rank,
                        const BootstrapOptions& options) {
  DeployabilityRow row;
  row.rank = kSideRanks[rank];
  for (const DeployabilityHead& head : heads) {
    row.bits += head.bits[rank] / static_cast<double>(heads.size());
  }
  for (size_t s = 0; s < kBasisSources.size(); ++s) {
    std::vector<double> kl, log_ratio, wins;
    for (const DeployabilityHead& head : heads) {
      kl.push_back(head.kl[rank][s]);
      log_ratio.push_back(std::log(head.kl[rank][s] / head.base_kl));
      wins.push_back(head.kl[rank][kQueryAt] < head.kl[rank][s] ? 1.0 : 0.0);
    }
    row.sources[s] = {kBasisSources[s], mean_error(kl), exp_of(mean_error(log_ratio)),
                      mean_error(wins)};
  }
  std::vector<int> clusters(heads.size());
  std::iota(clusters.begin(), clusters.end(), 0);
  const auto share = [&](std::span<const size_t> drawn) {
    const double random = mean_log(heads, drawn, rank, kRandomAt);
    return std::vector<double>{(random - mean_log(heads, drawn, rank, kQueryAt)) /
                               (random - mean_log(heads, drawn, rank, kOracleAt))};
  };
  row.reached = cluster_bootstrap(Clusters(clusters), options, share).front();
  return row;
}

}  // namespace

std::string to_string(BasisSource source) {
  switch (source) {
    case BasisSource::kQuery:
      return "query";
    case BasisSource::kOracle:
      return "oracle";
    case BasisSource::kKey:
      return "key";
    case BasisSource::kRandom:
      break;
  }
  return "random";
}

DeployabilityHead deployability_head(const DenseAttention& dense) {
  DeployabilityHead out;
  out.base_kl = mean_kl(dense.read_keys(CodecSpec::parse("kivi2"), dense.sample().profile));
  for (int rank : kSideRanks) {
    out.bits.push_back(key_bits(spec_of(rank, "query"), dense.sample()));
    auto& kl = out.kl.emplace_back();
    for (size_t s = 0; s < kBasisSources.size(); ++s) kl[s] = kl_of(dense, rank, kBasisSources[s]);
  }
  return out;
}

Deployability deployability(std::span<const DeployabilityHead> heads,
                            const BootstrapOptions& options) {
  Deployability out;
  out.n_heads = heads.size();
  std::vector<double> base;
  for (const DeployabilityHead& head : heads) base.push_back(head.base_kl);
  out.base_kl = mean_error(base);
  for (size_t r = 0; r < kSideRanks.size(); ++r) {
    out.rows.push_back(row_of(heads, r, options));
  }
  return out;
}

}  // namespace headq
