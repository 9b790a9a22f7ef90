#pragma once

#include <span>
#include <string>
#include <vector>

#include "diagnose/readings.h"
#include "diagnose/stats.h"

namespace headq {

// Experiment 1: which measure of an error says how much the error harms?

// Rank correlations of one measure with one kind of harm, over cells. A mean over groups leaves out
// the groups in which any measure or the harm does not vary.
struct Correlation {
  std::string metric;
  Interval overall;           // over all cells; bootstrap over KV heads
  Interval equal_bits;        // mean over the bit rates of the codecs; bootstrap over KV heads
  Interval within_layer;      // mean over layers; bootstrap over layers
  Interval layer_equal_bits;  // mean over the pairs of layer and bit rate; bootstrap over layers
  Interval within_head;       // mean over query heads, each over its codecs; bootstrap over these
};

// How well measures of an error rank the harm.
struct MetricTable {
  std::string harm;
  std::vector<Correlation> metrics;
  // Correlation of the method's measure minus that of raw storage error, on the same draws.
  Correlation gain;
  double chance = kNoValue;  // |correlation| that 95 % of random pairings of the cells stay below
};

// What one codec costs and does: means over KV heads, each over its query heads.
struct KeyCodecFigures {
  std::string codec;
  double bits = 0;  // mean over KV heads
  MeanError mse, fisher, kl, output_error;
};

struct ValueCodecFigures {
  std::string codec;
  double bits = 0;
  MeanError mse, a2_mse, output_error;
};

struct Superiority {
  size_t n_heads = 0;  // KV heads
  size_t n_layers = 0;
  size_t n_key_cells = 0;
  size_t n_value_cells = 0;
  MetricTable key_kl;      // mse, relative_mse, score_error, fisher against KL
  MetricTable key_output;  // and against the output error
  MetricTable values;      // mse, relative_mse, a2_mse against the readout error
  // The cells that are ranked; `codec` of a cell is its place in the list of codecs.
  std::vector<KeyCodecFigures> key_codecs;
  std::vector<ValueCodecFigures> value_codecs;
  std::vector<KeyCell> key_cells;
  std::vector<ValueCell> value_cells;
};

// Throws Error(kInvalidArgument) when a head lacks one of metric_key_specs().
Superiority metric_superiority(std::span<const HeadReadings> heads,
                               const BootstrapOptions& options);

// One column of figures over cells, with the name it has in reports.
struct Metric {
  std::string name;
  std::vector<double> values;
};

// Labels of the cells, [cells] each.
struct CellGroups {
  std::vector<int> source;  // KV head
  std::vector<int> layer;
  std::vector<int> head;  // query head
  // Codecs of equal bits have the same; cells with a negative one, whose bits differ from head to
  // head, are left out where bits have to be equal.
  std::vector<int> rate;
};

// The table behind each of the above. baseline and method are indices into metrics.
MetricTable metric_table(std::string harm, std::span<const double> target,
                         std::span<const Metric> metrics, size_t baseline, size_t method,
                         const CellGroups& groups, const BootstrapOptions& options);

}  // namespace headq
