#pragma once

#include <span>
#include <string>
#include <vector>

#include "diagnose/reading.h"
#include "headq/spec.h"

namespace headq {

// A codec that a head was read through.
struct CodecCase {
  CodecSpec spec;
  std::string name;  // spec as text
  double bits = 0;   // per element of a packed block
};

// One KV head read through every codec of a list. A cell of the experiments is a query head (of the
// group), a codec and, for random bases, a seed.
struct HeadReadings {
  int layer = 0;
  int head = 0;  // KV head of the layer
  int n_group = 1;
  std::vector<int> query_heads;   // [n_queries], in the group
  std::vector<double> entropies;  // [n_queries] of the dense attention, nats
  std::vector<CodecCase> key_codecs;
  std::vector<KeyReading> keys;  // [key_codecs]
  std::vector<CodecCase> value_codecs;
  std::vector<ValueReading> values;  // [value_codecs]

  // The reading of a key codec; throws Error(kInvalidArgument) when it is not among them.
  const KeyReading& key(const CodecSpec& spec) const;
};

// Codecs of the metric experiments. Sets at equal bits are among them: grids with and without
// rotation and centring, and side codes of equal rank along different directions.
std::vector<CodecSpec> metric_key_specs();
std::vector<CodecSpec> metric_value_specs();

// specs, and behind them the codes of nib that the heads were read through: which these are is the
// calibration's choice. Each head must have been read through the same.
std::vector<CodecSpec> with_nib(std::vector<CodecSpec> specs, std::span<const HeadReadings> heads);

// The side code with the sign turned, read beside the codecs above.
CodecSpec base_spec();
CodecSpec right_sign_spec();
CodecSpec wrong_sign_spec();

HeadReadings read_head(const DenseAttention& dense, std::span<const CodecSpec> key_specs,
                       std::span<const CodecSpec> value_specs);

// Figures of one cell: means over the queries of one query head.
struct KeyCell {
  size_t source = 0;  // index of the HeadReadings
  int layer = 0;
  int head = 0;  // query head of the layer
  size_t codec = 0;
  double bits = 0;
  bool own_rate = false;  // bits are spent over the heads (nib), so they differ from head to head
  double mse = 0, relative_mse = 0, score_error = 0, fisher = 0;
  double kl = 0, output_error = 0;
};

struct ValueCell {
  size_t source = 0;
  int layer = 0;
  int head = 0;
  size_t codec = 0;
  double bits = 0;
  bool own_rate = false;
  double mse = 0, relative_mse = 0, weighted = 0;
  double output_error = 0;
};

// Cells of all heads through the codecs of a list, head-major.
std::vector<KeyCell> key_cells(std::span<const HeadReadings> heads,
                               std::span<const CodecSpec> specs);
std::vector<ValueCell> value_cells(std::span<const HeadReadings> heads);

}  // namespace headq
