#include "diagnose/superiority.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <set>

namespace headq {
namespace {

std::vector<double> gather(std::span<const double> values, std::span<const size_t> indices) {
  std::vector<double> out;
  out.reserve(indices.size());
  for (size_t i : indices) out.push_back(values[i]);
  return out;
}

// What is correlated with what.
struct Scope {
  std::span<const double> target;
  std::span<const Metric> metrics;
  size_t baseline = 0;
  size_t method = 0;
};

// Correlation of each metric with the target over some cells, and last the gain.
std::vector<double> correlate(const Scope& scope, std::span<const size_t> cells) {
  const std::vector<double> y = ranks(gather(scope.target, cells));
  std::vector<double> out;
  for (const Metric& metric : scope.metrics) {
    out.push_back(pearson(ranks(gather(metric.values, cells)), y));
  }
  out.push_back(out[scope.method] - out[scope.baseline]);
  return out;
}

// Mean over groups of the correlation within each; groups where any is undefined are left out, and
// so are cells with a negative label.
std::vector<double> mean_over_groups(const Scope& scope, std::span<const int> labels,
                                     std::span<const size_t> cells) {
  std::map<int, std::vector<size_t>> groups;
  for (size_t i : cells) {
    if (labels[i] >= 0) groups[labels[i]].push_back(i);
  }
  std::vector<double> sums(scope.metrics.size() + 1, 0.0);
  double n = 0;
  for (const auto& [label, members] : groups) {
    const std::vector<double> found = correlate(scope, members);
    const bool defined =
        std::none_of(found.begin(), found.end(), [](double x) { return std::isnan(x); });
    if (!defined) continue;
    for (size_t f = 0; f < found.size(); ++f) sums[f] += found[f];
    ++n;
  }
  for (double& sum : sums) sum = n > 0 ? sum / n : kNoValue;
  return sums;
}

// Mean over outer groups of the mean over inner ones; the outer groups are what is drawn.
std::vector<Interval> nested_means(const Scope& scope, std::span<const int> outer,
                                   std::span<const int> inner, const BootstrapOptions& options) {
  std::vector<std::vector<double>> figures(scope.metrics.size() + 1);
  for (const auto& cells : Clusters(outer).members) {
    const std::vector<double> found = mean_over_groups(scope, inner, cells);
    for (size_t f = 0; f < found.size(); ++f) {
      if (!std::isnan(found[f])) figures[f].push_back(found[f]);
    }
  }
  std::vector<Interval> out;
  for (const auto& values : figures) {
    out.push_back(mean_interval(values, options));
  }
  return out;
}

template <typename Cell>
CellGroups groups_of(std::span<const Cell> cells) {
  CellGroups groups;
  constexpr int kMostHeads = 1 << 16;
  for (const Cell& cell : cells) {
    groups.source.push_back(static_cast<int>(cell.source));
    groups.layer.push_back(cell.layer);
    groups.head.push_back(cell.layer * kMostHeads + cell.head);
    groups.rate.push_back(cell.own_rate ? -1 : static_cast<int>(std::lround(1000 * cell.bits)));
  }
  return groups;
}

template <typename Cell>
std::vector<double> column(std::span<const Cell> cells, double Cell::*figure) {
  std::vector<double> out;
  out.reserve(cells.size());
  for (const Cell& cell : cells) out.push_back(cell.*figure);
  return out;
}

// Names of the codecs of cells in the order in which they come; `codec` of a cell becomes its
// codec's place there.
template <typename Cell>
std::vector<std::string> number_codecs(std::vector<Cell>& cells,
                                       std::span<const HeadReadings> heads,
                                       std::vector<CodecCase> HeadReadings::*cases) {
  std::vector<std::string> names;
  for (Cell& cell : cells) {
    const std::string& name = (heads[cell.source].*cases)[cell.codec].name;
    const auto at = std::find(names.begin(), names.end(), name);
    cell.codec = static_cast<size_t>(at - names.begin());
    if (at == names.end()) names.push_back(name);
  }
  return names;
}

// Mean over KV heads of a codec's means over the cells of each.
template <typename Cell>
MeanError mean_over_heads(std::span<const Cell> cells, size_t codec, double Cell::*figure) {
  std::map<size_t, std::vector<double>> heads;
  for (const Cell& cell : cells) {
    if (cell.codec == codec) heads[cell.source].push_back(cell.*figure);
  }
  std::vector<double> means;
  for (const auto& [source, values] : heads) means.push_back(mean_error(values).value);
  return mean_error(means);
}

std::vector<KeyCodecFigures> key_figures(std::span<const KeyCell> cells,
                                         const std::vector<std::string>& names) {
  std::vector<KeyCodecFigures> out;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto mean = [&](double KeyCell::*figure) { return mean_over_heads(cells, i, figure); };
    out.push_back({names[i], mean(&KeyCell::bits).value, mean(&KeyCell::mse),
                   mean(&KeyCell::fisher), mean(&KeyCell::kl), mean(&KeyCell::output_error)});
  }
  return out;
}

std::vector<ValueCodecFigures> value_figures(std::span<const ValueCell> cells,
                                             const std::vector<std::string>& names) {
  std::vector<ValueCodecFigures> out;
  for (size_t i = 0; i < names.size(); ++i) {
    const auto mean = [&](double ValueCell::*figure) { return mean_over_heads(cells, i, figure); };
    out.push_back({names[i], mean(&ValueCell::bits).value, mean(&ValueCell::mse),
                   mean(&ValueCell::weighted), mean(&ValueCell::output_error)});
  }
  return out;
}

}  // namespace

MetricTable metric_table(std::string harm, std::span<const double> target,
                         std::span<const Metric> metrics, size_t baseline, size_t method,
                         const CellGroups& groups, const BootstrapOptions& options) {
  const Scope scope = {target, metrics, baseline, method};
  const Clusters sources(groups.source);
  const auto draw_heads = [&](const auto& statistic) {
    return cluster_bootstrap(sources, options, statistic);
  };
  const auto overall =
      draw_heads([&](std::span<const size_t> cells) { return correlate(scope, cells); });
  const auto equal_bits = draw_heads(
      [&](std::span<const size_t> cells) { return mean_over_groups(scope, groups.rate, cells); });
  const std::vector<int> one_rate(groups.rate.size(), 0);
  const auto by_layer = nested_means(scope, groups.layer, one_rate, options);
  const auto by_layer_rate = nested_means(scope, groups.layer, groups.rate, options);
  const auto by_head = nested_means(scope, groups.head, one_rate, options);
  MetricTable table;
  table.harm = std::move(harm);
  const auto row = [&](const std::string& name, size_t i) {
    return Correlation{name, overall[i], equal_bits[i], by_layer[i], by_layer_rate[i], by_head[i]};
  };
  for (size_t m = 0; m < metrics.size(); ++m) table.metrics.push_back(row(metrics[m].name, m));
  table.gain = row(metrics[method].name + " - " + metrics[baseline].name, metrics.size());
  table.chance = chance_correlation(metrics[method].values, target, options);
  return table;
}

Superiority metric_superiority(std::span<const HeadReadings> heads,
                               const BootstrapOptions& options) {
  std::vector<KeyCell> keys = key_cells(heads, with_nib(metric_key_specs(), heads));
  std::vector<ValueCell> values = value_cells(heads);
  const auto key_names = number_codecs(keys, heads, &HeadReadings::key_codecs);
  const auto value_names = number_codecs(values, heads, &HeadReadings::value_codecs);
  const std::span<const KeyCell> k(keys);
  const std::span<const ValueCell> v(values);
  const std::vector<Metric> key_metrics = {{"mse", column(k, &KeyCell::mse)},
                                           {"relative_mse", column(k, &KeyCell::relative_mse)},
                                           {"score_error", column(k, &KeyCell::score_error)},
                                           {"fisher", column(k, &KeyCell::fisher)}};
  const std::vector<Metric> value_metrics = {{"mse", column(v, &ValueCell::mse)},
                                             {"relative_mse", column(v, &ValueCell::relative_mse)},
                                             {"a2_mse", column(v, &ValueCell::weighted)}};
  std::set<int> layers;
  for (const HeadReadings& head : heads) layers.insert(head.layer);
  const CellGroups key_groups = groups_of(k);
  Superiority out = {
      .n_heads = heads.size(),
      .n_layers = layers.size(),
      .n_key_cells = keys.size(),
      .n_value_cells = values.size(),
      .key_kl = metric_table("kl", column(k, &KeyCell::kl), key_metrics, 0, 3, key_groups, options),
      .key_output = metric_table("output_error", column(k, &KeyCell::output_error), key_metrics, 0,
                                 3, key_groups, options),
      .values = metric_table("output_error", column(v, &ValueCell::output_error), value_metrics, 0,
                             2, groups_of(v), options),
      .key_codecs = key_figures(k, key_names),
      .value_codecs = value_figures(v, value_names),
      .key_cells = {},
      .value_cells = {}};
  out.key_cells = std::move(keys);
  out.value_cells = std::move(values);
  return out;
}

}  // namespace headq
