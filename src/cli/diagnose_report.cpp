#include "cli/diagnose_report.h"

#include <fmt/format.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "cli/full_model_report.h"
#include "cli/table.h"

namespace headq {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kExamplesInTable = 8;

// --- JSON; what has no value becomes null.

Json json(const MeanError& m) { return {{"value", m.value}, {"error", m.error}, {"n", m.n}}; }

Json json(const Interval& i) { return {{"value", i.value}, {"low", i.low}, {"high", i.high}}; }

Json json(const Correlation& c) {
  return {{"metric", c.metric},
          {"overall", json(c.overall)},
          {"equal_bits", json(c.equal_bits)},
          {"within_layer", json(c.within_layer)},
          {"layer_equal_bits", json(c.layer_equal_bits)},
          {"within_head", json(c.within_head)}};
}

Json json(const MetricTable& table) {
  Json metrics = Json::array();
  for (const Correlation& metric : table.metrics) metrics.push_back(json(metric));
  return {{"harm", table.harm},
          {"spearman", metrics},
          {"gain", json(table.gain)},
          {"chance", table.chance}};
}

// Cells as columns, one array for each figure.
template <typename Cell>
class CellColumns {
 public:
  explicit CellColumns(const std::vector<Cell>& cells) : cells_(cells) {}

  template <typename Figure>
  void add(const char* name, Figure Cell::*figure) {
    Json column = Json::array();
    for (const Cell& cell : cells_) column.push_back(rounded(cell.*figure));
    columns_[name] = column;
  }
  const Json& columns() const { return columns_; }

 private:
  static int rounded(int index) { return index; }
  static size_t rounded(size_t index) { return index; }
  // The many figures of the cells are for pictures; more digits would only make the file larger.
  static double rounded(double figure) { return std::stod(fmt::format("{:.4g}", figure)); }

  const std::vector<Cell>& cells_;
  Json columns_;
};

Json key_cells_json(const std::vector<KeyCell>& cells) {
  CellColumns<KeyCell> out(cells);
  out.add("layer", &KeyCell::layer);
  out.add("head", &KeyCell::head);
  out.add("codec", &KeyCell::codec);
  out.add("mse", &KeyCell::mse);
  out.add("relative_mse", &KeyCell::relative_mse);
  out.add("score_error", &KeyCell::score_error);
  out.add("fisher", &KeyCell::fisher);
  out.add("kl", &KeyCell::kl);
  out.add("output_error", &KeyCell::output_error);
  return out.columns();
}

Json value_cells_json(const std::vector<ValueCell>& cells) {
  CellColumns<ValueCell> out(cells);
  out.add("layer", &ValueCell::layer);
  out.add("head", &ValueCell::head);
  out.add("codec", &ValueCell::codec);
  out.add("mse", &ValueCell::mse);
  out.add("relative_mse", &ValueCell::relative_mse);
  out.add("a2_mse", &ValueCell::weighted);
  out.add("output_error", &ValueCell::output_error);
  return out.columns();
}

Json json(const KeyCodecFigures& f) {
  return {{"codec", f.codec},         {"bits", f.bits},   {"mse", json(f.mse)},
          {"fisher", json(f.fisher)}, {"kl", json(f.kl)}, {"output_error", json(f.output_error)}};
}

Json json(const ValueCodecFigures& f) {
  return {{"codec", f.codec},
          {"bits", f.bits},
          {"mse", json(f.mse)},
          {"a2_mse", json(f.a2_mse)},
          {"output_error", json(f.output_error)}};
}

Json json(const Superiority& s) {
  Json key_codecs = Json::array(), value_codecs = Json::array();
  for (const KeyCodecFigures& codec : s.key_codecs) key_codecs.push_back(json(codec));
  for (const ValueCodecFigures& codec : s.value_codecs) value_codecs.push_back(json(codec));
  return {{"n_heads", s.n_heads},
          {"n_layers", s.n_layers},
          {"n_key_cells", s.n_key_cells},
          {"n_value_cells", s.n_value_cells},
          {"key_kl", json(s.key_kl)},
          {"key_output", json(s.key_output)},
          {"values", json(s.values)},
          {"key_codecs", key_codecs},
          {"value_codecs", value_codecs},
          {"key_cells", key_cells_json(s.key_cells)},
          {"value_cells", value_cells_json(s.value_cells)}};
}

Json json(const Reversals& r) {
  return {{"n_pairs", r.n_pairs},
          {"n_reversed", r.n_reversed},
          {"n_significant", r.n_significant},
          {"share", json(r.share)},
          {"significant_share", json(r.significant_share)}};
}

Json json(const Counterexamples& c) {
  Json shown = Json::array();
  for (const Counterexample& e : c.shown) {
    const auto side = [&](const std::string& codec, int i) {
      return Json{{"codec", codec},
                  {"mse", e.mse[i]},
                  {"kl", e.kl[i]},
                  {"output_error", e.output_error[i]}};
    };
    shown.push_back({{"layer", e.layer},
                     {"head", e.head},
                     {"bits", e.bits},
                     {"stored_better", side(e.stored_better, 0)},
                     {"read_better", side(e.read_better, 1)},
                     {"kl_difference", json(e.kl_difference)},
                     {"output_difference", json(e.output_difference)}});
  }
  return {{"margin", Counterexamples::kMargin},
          {"by_mse", json(c.by_mse)},
          {"by_fisher", json(c.by_fisher)},
          {"shown", shown}};
}

Json json(const NullSpace& n) {
  Json dense = Json::array(), rows = Json::array();
  for (size_t m = 0; m < n.dense_kl.size(); ++m) {
    dense.push_back({{"multiple", kShiftMultiples[m]}, {"kl_max", n.dense_kl[m]}});
  }
  for (const NullSpaceRow& row : n.rows) {
    rows.push_back({{"codec", row.codec},
                    {"multiple", row.multiple},
                    {"kl", json(row.kl)},
                    {"mse", json(row.mse)},
                    {"kl_ratio", json(row.kl_ratio)}});
  }
  return {{"n_heads", n.n_heads}, {"dense", dense}, {"rows", rows}};
}

Json json(const Deployability& d) {
  Json rows = Json::array();
  for (const DeployabilityRow& row : d.rows) {
    Json sources = Json::array();
    for (const auto& source : row.sources) {
      sources.push_back({{"basis", to_string(source.source)},
                         {"kl", json(source.kl)},
                         {"kl_ratio", json(source.kl_ratio)},
                         {"query_wins", json(source.query_wins)}});
    }
    rows.push_back({{"rank", row.rank},
                    {"bits", row.bits},
                    {"bases", sources},
                    {"oracle_gain_reached", json(row.reached)}});
  }
  return {{"n_heads", d.n_heads}, {"base", "kivi2"}, {"base_kl", json(d.base_kl)}, {"rows", rows}};
}

Json json(const DirectionRow& row) {
  return {{"codec", row.codec},
          {"kl", json(row.kl)},
          {"fisher", json(row.fisher)},
          {"output_error", json(row.output_error)},
          {"kl_ratio", json(row.kl_ratio)}};
}

Json json(const Direction& d) {
  return {{"n_heads", d.n_heads},
          {"right", json(d.right)},
          {"none", json(d.none)},
          {"wrong", json(d.wrong)},
          {"ordered", json(d.ordered)}};
}

Json json(const A2Policy& a) {
  Json rows = Json::array();
  for (const A2PolicyRow& row : a.rows) {
    rows.push_back({{"policy", to_string(row.policy)},
                    {"bits", row.bits},
                    {"mse", json(row.mse)},
                    {"a2_error", json(row.a2_error)},
                    {"output_error", json(row.output_error)},
                    {"a2_ratio", json(row.a2_ratio)},
                    {"output_ratio", json(row.output_ratio)},
                    {"captured", json(row.captured)}});
  }
  Json paid_over = Json::array();
  for (const A2Policy::Comparison& other : a.paid_over) {
    paid_over.push_back({{"policy", to_string(other.other)},
                         {"output_error_ratio", json(other.ratio)},
                         {"wins", json(other.wins)}});
  }
  return {{"n_heads", a.n_heads}, {"rows", rows}, {"paid_over", paid_over}};
}

Json json(const Regime& r) {
  return {{"entropy", r.entropy},
          {"route", r.route},
          {"n_cases", r.n_cases},
          {"share", json(r.share)},
          {"damage_share", json(r.damage_share)},
          {"kl", json(r.kl)},
          {"fisher", json(r.fisher)},
          {"fisher_over_kl", json(r.fisher_over_kl)},
          {"spearman", json(r.correlation)}};
}

Json json(const RouteFlips& r) {
  Json regimes = Json::array(), layers = Json::array();
  for (const Regime& regime : r.regimes) regimes.push_back(json(regime));
  for (const LayerRoutes& layer : r.layers) {
    layers.push_back({{"layer", layer.layer},
                      {"low_entropy_regime", layer.has_low_entropy_regime},
                      {"all", json(layer.all)},
                      {"low_entropy", json(layer.low_entropy)},
                      {"flipped", json(layer.flipped)},
                      {"low_entropy_flipped", json(layer.low_entropy_flipped)}});
  }
  return {{"codecs", r.codecs},   {"entropy_bounds", kEntropyBounds},
          {"n_cases", r.n_cases}, {"all", json(r.all)},
          {"regimes", regimes},   {"layers", layers}};
}

Json json(const NoiseFloor& f) {
  return {{"identity_kl_max", f.identity_kl},
          {"f16_kl", json(f.f16_kl)},
          {"f16_kl_max", f.f16_kl_max},
          {"f16_flips", json(f.f16_flips)}};
}

// --- Tables.

std::string cell(const MeanError& m, double scale = 1, const char* format = "{:.3g}") {
  const std::string value = fmt::format(fmt::runtime(format), scale * m.value);
  return std::isnan(m.error) ? value : fmt::format("{} ± {:.1g}", value, scale * m.error);
}

std::string cell(const Interval& i, int digits = 2, double scale = 1) {
  if (std::isnan(i.value)) return "-";
  if (std::isnan(i.low)) return fmt::format("{:.{}f}", scale * i.value, digits);
  return fmt::format("{:.{}f} [{:.{}f}, {:.{}f}]", scale * i.value, digits, scale * i.low, digits,
                     scale * i.high, digits);
}

std::string percent(const MeanError& m) {
  return std::isnan(m.error) ? fmt::format("{:.1f} %", 100 * m.value)
                             : fmt::format("{:.1f} ± {:.1f} %", 100 * m.value, 100 * m.error);
}

std::string percent(const Interval& i) {
  if (std::isnan(i.value)) return "-";
  if (i.value == 0) return "0";
  return fmt::format("{:.1f} % [{:.1f}, {:.1f}]", 100 * i.value, 100 * i.low, 100 * i.high);
}

std::string metric_text(const std::string& title, const MetricTable& table) {
  Table out({title, "overall", "at equal bits", "within a layer", "there at equal bits",
             "within a head"});
  const auto add = [&](const Correlation& c) {
    out.add_row({c.metric, cell(c.overall), cell(c.equal_bits), cell(c.within_layer),
                 cell(c.layer_equal_bits), cell(c.within_head)});
  };
  for (const Correlation& metric : table.metrics) add(metric);
  add(table.gain);
  return out.to_string() + fmt::format("By chance: below {:.2f}\n\n", table.chance);
}

std::string tables(const Superiority& s) {
  return fmt::format(
             "1. Which measure ranks the harm? Spearman's correlation, {} key cells and {} value "
             "cells of {} KV heads in {} layers\n\n",
             s.n_key_cells, s.n_value_cells, s.n_heads, s.n_layers) +
         metric_text("keys: attention KL", s.key_kl) +
         metric_text("keys: output error", s.key_output) +
         metric_text("values: output error", s.values);
}

std::string tables(const Counterexamples& c) {
  Table counts({"pairs at equal bits, ordered by", "pairs", "wrong way round", "share",
                "beyond 2 errors", "share"});
  const auto add = [&](const char* name, const Reversals& r) {
    counts.add_row({name, fmt::format("{}", r.n_pairs), fmt::format("{}", r.n_reversed),
                    percent(r.share), fmt::format("{}", r.n_significant),
                    percent(r.significant_share)});
  };
  add("storage MSE", c.by_mse);
  add("Fisher", c.by_fisher);
  Table shown({"layer/head", "bits", "lower MSE", "MSE", "KL", "output error", "less harm", "MSE",
               "KL", "output error", "KL difference"});
  for (size_t i = 0; i < std::min(c.shown.size(), kExamplesInTable); ++i) {
    const Counterexample& e = c.shown[i];
    std::vector<std::string> row = {fmt::format("{}/{}", e.layer, e.head),
                                    fmt::format("{:.2f}", e.bits)};
    for (int side = 0; side < 2; ++side) {
      row.push_back(side == 0 ? e.stored_better : e.read_better);
      for (double x : {e.mse[side], e.kl[side], e.output_error[side]}) {
        row.push_back(fmt::format("{:.3g}", x));
      }
    }
    row.push_back(cell(e.kl_difference));
    shown.add_row(row);
  }
  return "2. Counterexamples: less storage error, more harm\n\n" + counts.to_string() + "\n" +
         (c.shown.empty() ? std::string() : shown.to_string() + "\n");
}

std::string tables(const NullSpace& n) {
  std::vector<std::string> header = {"KL by multiple of the mean added"};
  for (double multiple : kShiftMultiples) header.push_back(fmt::format("{:+g}", multiple));
  Table out(header);
  std::vector<std::string> dense = {"dense (largest)"};
  for (double kl : n.dense_kl) dense.push_back(fmt::format("{:.1e}", kl));
  out.add_row(dense);
  std::vector<std::string> row, ratios;
  for (const NullSpaceRow& r : n.rows) {
    if (row.empty()) {
      row = {r.codec};
      ratios = {"  x of +0"};
    }
    row.push_back(cell(r.kl));
    ratios.push_back(cell(r.kl_ratio));
    if (row.size() < header.size()) continue;
    out.add_row(row);
    out.add_row(ratios);
    row.clear();
  }
  return fmt::format("3. A vector that all keys share, {} KV heads\n\n", n.n_heads) +
         out.to_string() + "\n";
}

std::string tables(const Deployability& d) {
  std::vector<std::string> header = {"rank", "bits"};
  for (BasisSource source : kBasisSources) header.push_back(to_string(source));
  header.insert(header.end(), {"of oracle's gain", "beats key", "beats random"});
  Table out(header);
  for (const DeployabilityRow& row : d.rows) {
    std::vector<std::string> cells = {fmt::format("{}", row.rank), fmt::format("{:.3f}", row.bits)};
    for (const auto& source : row.sources) cells.push_back(cell(source.kl_ratio));
    cells.push_back(cell(row.reached));
    cells.push_back(percent(row.sources[2].query_wins));
    cells.push_back(percent(row.sources[3].query_wins));
    out.add_row(cells);
  }
  return fmt::format("4. Side code directions: KL over that of kivi2 alone ({}), {} KV heads\n\n",
                     cell(d.base_kl), d.n_heads) +
         out.to_string() + "\n";
}

std::string tables(const Direction& d) {
  Table out({"correction", "codec", "KL", "x of none", "Fisher", "output error"});
  const auto add = [&](const char* name, const DirectionRow& row) {
    out.add_row({name, row.codec, cell(row.kl), cell(row.kl_ratio), cell(row.fisher),
                 cell(row.output_error)});
  };
  add("added", d.right);
  add("none", d.none);
  add("subtracted", d.wrong);
  return fmt::format("5. Direction: added < none < subtracted in {} of {} KV heads\n\n",
                     percent(d.ordered), d.n_heads) +
         out.to_string() + "\n";
}

std::string tables(const A2Policy& a) {
  Table out({"half a bit more", "bits", "output error", "x of base", "A2 error, x of base", "storage MSE",
             "attention captured"});
  for (const A2PolicyRow& row : a.rows) {
    out.add_row({to_string(row.policy), fmt::format("{:.3f}", row.bits), cell(row.output_error),
                 cell(row.output_ratio, 3), cell(row.a2_ratio, 3), cell(row.mse), percent(row.captured)});
  }
  Table against({"paid against", "output error, x of it", "lower in"});
  for (const A2Policy::Comparison& other : a.paid_over) {
    against.add_row({to_string(other.other), cell(other.ratio, 3), percent(other.wins)});
  }
  return fmt::format("7. Values: bits by attention paid, {} KV heads\n\n", a.n_heads) + out.to_string() +
         "\n" + against.to_string() + "\n";
}

std::string tables(const RouteFlips& r) {
  Table out({"entropy, likeliest token", "cases", "share", "of the damage", "KL", "Fisher / KL",
             "Spearman"});
  const auto add = [&](const Regime& regime) {
    out.add_row({fmt::format("{}, {}", regime.entropy, regime.route),
                 fmt::format("{}", regime.n_cases), percent(regime.share),
                 percent(regime.damage_share), cell(regime.kl, 4), cell(regime.fisher_over_kl),
                 cell(regime.correlation)});
  };
  for (const Regime& regime : r.regimes) add(regime);
  add(r.all);
  Table layers({"layer", "KL", "flipped", "of the damage", "low entropy", "low and flipped",
                "of the damage", "Fisher / KL there", "regime"});
  for (const LayerRoutes& l : r.layers) {
    layers.add_row({fmt::format("{}", l.layer), cell(l.all.kl, 4), percent(l.flipped.share),
                    percent(l.flipped.damage_share), percent(l.low_entropy.share),
                    percent(l.low_entropy_flipped.share),
                    percent(l.low_entropy_flipped.damage_share),
                    cell(l.low_entropy_flipped.fisher_over_kl),
                    l.has_low_entropy_regime ? "low entropy" : ""});
  }
  return fmt::format("8. Route flips: {} cases\n\n", r.n_cases) + out.to_string() + "\n" +
         layers.to_string() + "\n";
}

std::string floor_line(const NoiseFloor& f) {
  return fmt::format(
      "Noise floor: KL of dense keys against themselves {:.1e}, of keys rounded to f16 {} (largest "
      "head {:.1e}, flips {})\n",
      f.identity_kl, cell(f.f16_kl), f.f16_kl_max, percent(f.f16_flips));
}

}  // namespace

std::string to_json(const DiagnosisSource& source, const Diagnosis& d,
                    const std::optional<FullModel>& full_model) {
  Json out = {{"model", source.model},
                    {"text", source.text},
                    {"n_ctx", source.n_ctx},
                    {"n_calibration_chunks", source.n_calibration},
                    {"n_chunks", source.n_chunks},
                    {"window", source.window},
                    {"sinks", source.sinks},
                    {"n_replicates", source.n_replicates},
                    {"seed", source.seed},
                    {"n_heads", d.n_heads},
                    {"n_queries", d.n_queries},
                    {"noise_floor", json(d.floor)},
                    {"experiments",
                     {{"metrics", json(d.superiority)},
                      {"counterexamples", json(d.counterexamples)},
                      {"null_space", json(d.null_space)},
                      {"deployability", json(d.deployability)},
                      {"direction", json(d.direction)},
                      {"a2_policy", json(d.a2_policy)},
                      {"route_flips", json(d.route_flips)}}}};
  if (full_model) out["experiments"]["full_model"] = full_model_json(*full_model);
  // Names of files may be any bytes; what is no UTF-8 becomes U+FFFD.
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string to_tables(const DiagnosisSource& source, const Diagnosis& d,
                      const std::optional<FullModel>& full_model) {
  return tables(d.superiority) + tables(d.counterexamples) + tables(d.null_space) +
         tables(d.deployability) + tables(d.direction) +
         (full_model ? full_model_tables(*full_model) : "") + tables(d.a2_policy) +
         tables(d.route_flips) +
         floor_line(d.floor) +
         fmt::format(
             "{} on {}: {} queries of {} KV heads, {} chunks of {} tokens after {} for "
             "calibration; window {}, sinks {}; a ± b: mean and standard error, [a, b]: 95 % of {} "
             "bootstrap draws, seed {}\n",
             source.model, source.text, d.n_queries, d.n_heads, source.n_chunks, source.n_ctx,
             source.n_calibration, source.window, source.sinks, source.n_replicates, source.seed);
}

}  // namespace headq
