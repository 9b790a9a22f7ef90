#include "diagnose/stats.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "core/parallel.h"
#include "core/random.h"

namespace headq {
namespace {

double quantile(std::span<const double> sorted, double share) {
  const double at = share * static_cast<double>(sorted.size() - 1);
  const size_t i = static_cast<size_t>(at);
  if (i + 1 >= sorted.size()) return sorted.back();
  return sorted[i] + (at - static_cast<double>(i)) * (sorted[i + 1] - sorted[i]);
}

}  // namespace

MeanError mean_error(std::span<const double> values) {
  MeanError out;
  out.n = values.size();
  if (values.empty()) return out;
  const double n = static_cast<double>(values.size());
  out.value = std::accumulate(values.begin(), values.end(), 0.0) / n;
  if (values.size() < 2) return out;
  double square = 0;
  for (double x : values) square += (x - out.value) * (x - out.value);
  out.error = std::sqrt(square / (n * (n - 1)));
  return out;
}

MeanError exp_of(const MeanError& log_mean) {
  const double value = std::exp(log_mean.value);
  return {value, value * log_mean.error, log_mean.n};
}

std::vector<double> ranks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    if (std::isnan(values[a]) || std::isnan(values[b])) {
      return !std::isnan(values[a]) && std::isnan(values[b]);
    }
    return values[a] < values[b];
  });
  std::vector<double> out(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double rank = 0.5 * static_cast<double>(begin + 1 + end);
    for (size_t i = begin; i < end; ++i) out[order[i]] = rank;
    begin = end;
  }
  return out;
}

double pearson(std::span<const double> x, std::span<const double> y) {
  const double n = static_cast<double>(x.size());
  if (x.size() < 2) return kNoValue;
  const double mx = std::accumulate(x.begin(), x.end(), 0.0) / n;
  const double my = std::accumulate(y.begin(), y.end(), 0.0) / n;
  double xx = 0, yy = 0, xy = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    xx += (x[i] - mx) * (x[i] - mx);
    yy += (y[i] - my) * (y[i] - my);
    xy += (x[i] - mx) * (y[i] - my);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : kNoValue;
}

double spearman(std::span<const double> x, std::span<const double> y) {
  return pearson(ranks(x), ranks(y));
}

std::vector<size_t> resample(size_t n, uint64_t seed, int replicate) {
  // A stream for each replicate: their first draws are far apart in the generator's sequence.
  Random random(Random(seed).next() ^ (static_cast<uint64_t>(replicate) * 0xd1342543de82ef95u));
  std::vector<size_t> indices(n);
  for (size_t& i : indices) i = random.below(n);
  return indices;
}

Interval interval_of(double value, std::vector<double> replicates) {
  std::erase_if(replicates, [](double x) { return std::isnan(x); });
  if (replicates.empty()) return {value, kNoValue, kNoValue};
  std::sort(replicates.begin(), replicates.end());
  return {value, quantile(replicates, 0.025), quantile(replicates, 0.975)};
}

Interval mean_interval(std::span<const double> values, const BootstrapOptions& options) {
  if (values.empty()) return {};
  const double n = static_cast<double>(values.size());
  std::vector<double> means;
  for (int r = 0; r < options.n_replicates; ++r) {
    double sum = 0;
    for (size_t i : resample(values.size(), options.seed, r)) sum += values[i];
    means.push_back(sum / n);
  }
  return interval_of(std::accumulate(values.begin(), values.end(), 0.0) / n, std::move(means));
}

Clusters::Clusters(std::span<const int> cluster) {
  std::map<int, size_t> index;
  for (size_t i = 0; i < cluster.size(); ++i) {
    const auto [at, is_new] = index.try_emplace(cluster[i], members.size());
    if (is_new) members.emplace_back();
    members[at->second].push_back(i);
  }
}

std::vector<Interval> cluster_bootstrap(
    const Clusters& clusters, const BootstrapOptions& options,
    const std::function<std::vector<double>(std::span<const size_t>)>& statistic) {
  const auto members_of = [&](std::span<const size_t> drawn) {
    std::vector<size_t> indices;
    for (size_t c : drawn) {
      indices.insert(indices.end(), clusters.members[c].begin(), clusters.members[c].end());
    }
    return indices;
  };
  const size_t n_clusters = clusters.members.size();
  std::vector<size_t> all(n_clusters);
  std::iota(all.begin(), all.end(), size_t{0});
  all = members_of(all);
  std::sort(all.begin(), all.end());
  const std::vector<double> values = statistic(all);

  const size_t n_replicates =
      n_clusters == 0 ? 0 : static_cast<size_t>(std::max(options.n_replicates, 0));
  std::vector<std::vector<double>> replicates(values.size(), std::vector<double>(n_replicates));
  parallel_for(options.n_threads, n_replicates, [&](size_t r, int) {
    const auto drawn = resample(n_clusters, options.seed, static_cast<int>(r));
    const std::vector<double> figures = statistic(members_of(drawn));
    for (size_t f = 0; f < figures.size(); ++f) replicates[f][r] = figures[f];
  });
  std::vector<Interval> out;
  for (size_t f = 0; f < values.size(); ++f) {
    out.push_back(interval_of(values[f], std::move(replicates[f])));
  }
  return out;
}

double chance_correlation(std::span<const double> x, std::span<const double> y,
                          const BootstrapOptions& options) {
  if (x.size() < 2) return kNoValue;
  const std::vector<double> x_ranks = ranks(x);
  std::vector<double> y_ranks = ranks(y);
  Random random(options.seed);
  std::vector<double> found;
  for (int r = 0; r < options.n_replicates; ++r) {
    for (size_t i = y_ranks.size() - 1; i > 0; --i) {
      std::swap(y_ranks[i], y_ranks[random.below(i + 1)]);
    }
    const double rho = std::fabs(pearson(x_ranks, y_ranks));
    if (!std::isnan(rho)) found.push_back(rho);
  }
  if (found.empty()) return kNoValue;
  std::sort(found.begin(), found.end());
  return quantile(found, 0.95);
}

}  // namespace headq
