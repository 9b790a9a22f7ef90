#include "diagnose/route_flips.h"

#include <algorithm>
#include <map>

namespace headq {
namespace {

struct Case {
  int layer = 0;
  int head = 0;   // index of the KV head
  int query = 0;  // the same for the same query through other codecs
  size_t band = 0;
  bool flipped = false;
  double kl = 0;
  double fisher = 0;
};

// Which cases a regime takes; -1: all.
struct Selection {
  int band = -1;
  int flipped = -1;

  bool takes(const Case& c) const {
    return (band < 0 || c.band == static_cast<size_t>(band)) &&
           (flipped < 0 || c.flipped == (flipped == 1));
  }
};

size_t band_of(double entropy) {
  return static_cast<size_t>(
      std::upper_bound(kEntropyBounds.begin(), kEntropyBounds.end(), entropy) -
      kEntropyBounds.begin());
}

std::vector<CodecSpec> specs_of(std::span<const HeadReadings> heads) {
  std::vector<CodecSpec> specs = route_flip_specs();
  for (const CodecSpec& spec : with_nib({}, heads)) {
    if (spec == CodecSpec::parse("nib2")) specs.push_back(spec);
  }
  return specs;
}

std::vector<Case> cases_of(std::span<const HeadReadings> heads,
                           std::span<const CodecSpec> specs) {
  std::vector<Case> out;
  int first_query = 0;
  for (size_t h = 0; h < heads.size(); ++h) {
    const HeadReadings& head = heads[h];
    for (const CodecSpec& spec : specs) {
      const KeyReading& reading = head.key(spec);
      for (size_t i = 0; i < reading.queries.size(); ++i) {
        const QueryDamage& query = reading.queries[i];
        out.push_back({head.layer, static_cast<int>(h), first_query + static_cast<int>(i),
                       band_of(head.entropies[i]), query.flipped, query.scores.kl,
                       query.scores.fisher});
      }
    }
    first_query += static_cast<int>(head.entropies.size());
  }
  return out;
}

// share, damage share, KL, Fisher, Fisher over KL, correlation of the selected cases among drawn.
std::vector<double> figures(std::span<const Case> cases, const Selection& selection,
                            std::span<const size_t> drawn) {
  double all_kl = 0, sum_kl = 0, sum_fisher = 0;
  std::vector<double> kl, fisher;
  for (size_t i : drawn) {
    const Case& c = cases[i];
    all_kl += c.kl;
    if (!selection.takes(c)) continue;
    sum_kl += c.kl;
    sum_fisher += c.fisher;
    kl.push_back(c.kl);
    fisher.push_back(c.fisher);
  }
  const double n = static_cast<double>(kl.size());
  const double none = kNoValue;
  return {n / static_cast<double>(drawn.size()),
          all_kl > 0 ? sum_kl / all_kl : none,
          n > 0 ? sum_kl / n : none,
          n > 0 ? sum_fisher / n : none,
          sum_kl > 0 ? sum_fisher / sum_kl : none,
          spearman(fisher, kl)};
}

Regime regime(std::span<const Case> cases, const Clusters& clusters, const Selection& selection,
              const BootstrapOptions& options) {
  const auto found = cluster_bootstrap(clusters, options, [&](std::span<const size_t> drawn) {
    return figures(cases, selection, drawn);
  });
  Regime out;
  out.entropy = selection.band < 0 ? "all" : kEntropyBands[static_cast<size_t>(selection.band)];
  out.route = selection.flipped < 0 ? "all" : selection.flipped == 1 ? "flipped" : "kept";
  out.n_cases = static_cast<size_t>(
      std::count_if(cases.begin(), cases.end(), [&](const Case& c) { return selection.takes(c); }));
  const auto n_present = std::count_if(
      clusters.members.begin(), clusters.members.end(), [&](const std::vector<size_t>& members) {
        return std::any_of(members.begin(), members.end(),
                           [&](size_t i) { return selection.takes(cases[i]); });
      });
  out.share = found[0];
  out.damage_share = found[1];
  out.kl = found[2];
  out.fisher = found[3];
  out.fisher_over_kl = found[4];
  out.correlation = found[5];
  // Draws of one or two clusters are nearly all the same and say nothing of what others would be.
  if (n_present < Regime::kFewestClusters) {
    for (Interval* figure : {&out.kl, &out.fisher, &out.fisher_over_kl, &out.correlation}) {
      figure->low = figure->high = kNoValue;
    }
  }
  return out;
}

Clusters clusters_by(std::span<const Case> cases, int Case::*label) {
  std::vector<int> labels;
  labels.reserve(cases.size());
  for (const Case& c : cases) labels.push_back(c.*label);
  return Clusters(labels);
}

LayerRoutes layer_routes(int layer, std::span<const Case> cases, const BootstrapOptions& options) {
  constexpr int kLow = static_cast<int>(kLowEntropy);
  const Clusters clusters = clusters_by(cases, &Case::query);
  LayerRoutes out;
  out.layer = layer;
  out.all = regime(cases, clusters, {}, options);
  out.low_entropy = regime(cases, clusters, {kLow, -1}, options);
  out.flipped = regime(cases, clusters, {-1, 1}, options);
  out.low_entropy_flipped = regime(cases, clusters, {kLow, 1}, options);
  const Regime& low = out.low_entropy_flipped;
  out.has_low_entropy_regime = low.damage_share.value >= LayerRoutes::kNamedShare &&
                               low.fisher_over_kl.high < LayerRoutes::kUnderestimate;
  return out;
}

}  // namespace

std::vector<CodecSpec> route_flip_specs() {
  return {CodecSpec::parse("kivi2"), CodecSpec::parse("kivi2+hq4x4"), CodecSpec::parse("token2"),
          CodecSpec::parse("token4")};
}

RouteFlips route_flips(std::span<const HeadReadings> heads, const BootstrapOptions& options) {
  const std::vector<CodecSpec> specs = specs_of(heads);
  const std::vector<Case> cases = cases_of(heads, specs);
  RouteFlips out;
  for (const CodecSpec& spec : specs) out.codecs.push_back(spec.to_string());
  out.n_cases = cases.size();
  const Clusters by_head = clusters_by(cases, &Case::head);
  out.all = regime(cases, by_head, {}, options);
  for (size_t band = 0; band < kEntropyBands.size(); ++band) {
    for (int flipped : {0, 1}) {
      out.regimes.push_back(regime(cases, by_head, {static_cast<int>(band), flipped}, options));
    }
  }
  std::map<int, std::vector<Case>> by_layer;
  for (const Case& c : cases) by_layer[c.layer].push_back(c);
  for (const auto& [layer, of_layer] : by_layer) {
    out.layers.push_back(layer_routes(layer, of_layer, options));
  }
  return out;
}

}  // namespace headq
