#include "diagnose/readings.h"

#include <fmt/format.h>

#include <algorithm>

#include "headq/error.h"

namespace headq {
namespace {

std::vector<CodecSpec> parse_all(std::initializer_list<const char*> names) {
  std::vector<CodecSpec> out;
  for (const char* name : names) out.push_back(CodecSpec::parse(name));
  return out;
}

size_t index_of(const HeadReadings& head, const CodecSpec& spec) {
  for (size_t i = 0; i < head.key_codecs.size(); ++i) {
    if (head.key_codecs[i].spec == spec) return i;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("codec '{}' was not read", spec.to_string()));
}

// Adds a query's figures to the sums of a cell.
void add(KeyCell& cell, const QueryDamage& query) {
  cell.score_error += query.scores.score_error;
  cell.fisher += query.scores.fisher;
  cell.kl += query.scores.kl;
  cell.output_error += query.output_error;
}

void divide(KeyCell& cell, double n) {
  cell.score_error /= n;
  cell.fisher /= n;
  cell.kl /= n;
  cell.output_error /= n;
}

void add(ValueCell& cell, const ValueQuery& query) {
  cell.weighted += query.weighted;
  cell.output_error += query.output_error;
}

void divide(ValueCell& cell, double n) {
  cell.weighted /= n;
  cell.output_error /= n;
}

// Appends the cells of one reading: one for each query head that has queries.
template <typename Cell, typename Reading>
void append_cells(const HeadReadings& head, const Reading& reading, const Cell& base,
                  std::vector<Cell>& cells) {
  for (int g = 0; g < head.n_group; ++g) {
    Cell cell = base;
    cell.layer = head.layer;
    cell.head = head.head * head.n_group + g;
    cell.mse = reading.mse;
    cell.relative_mse = reading.relative_mse;
    double n = 0;
    for (size_t i = 0; i < reading.queries.size(); ++i) {
      if (head.query_heads[i] != g) continue;
      add(cell, reading.queries[i]);
      ++n;
    }
    if (n == 0) continue;
    divide(cell, n);
    cells.push_back(cell);
  }
}

}  // namespace

const KeyReading& HeadReadings::key(const CodecSpec& spec) const {
  return keys[index_of(*this, spec)];
}

std::vector<CodecSpec> metric_key_specs() {
  return parse_all({"kivi2",
                    "kivi3",
                    "kivi4",  //
                    "token2",
                    "token2h",
                    "token2c",
                    "token2hc",  // 3 bits
                    "token4",
                    "token4h",
                    "token4c",
                    "token4hc",  // 5 bits
                    "kivi2+hq4x4",
                    "kivi2+hq4x4@key",  //
                    "kivi2+hq4x4@random:1",
                    "kivi2+hq4x4@random:2",
                    "kivi2+hq4x4@random:3",
                    "kivi2+hq8x4",
                    "kivi2+hq8x4@key",
                    "kivi2+hq8x4@random:1",
                    "token2+hq4x4",
                    "token2+hq4x4@key",
                    "token2+hq4x4@random:1",
                    "token2+hq4x4@random:2"});
}

std::vector<CodecSpec> metric_value_specs() {
  return parse_all({"kivi2", "kivi3", "kivi4", "kivi8", "token2", "token2h", "token4", "token4h"});
}

std::vector<CodecSpec> with_nib(std::vector<CodecSpec> specs,
                                std::span<const HeadReadings> heads) {
  if (heads.empty()) return specs;
  for (const CodecCase& codec : heads.front().key_codecs) {
    if (codec.spec.is_nib()) specs.push_back(codec.spec);
  }
  return specs;
}

CodecSpec base_spec() { return CodecSpec::parse("kivi2"); }
CodecSpec right_sign_spec() { return CodecSpec::parse("kivi2+hq4x4"); }
CodecSpec wrong_sign_spec() { return CodecSpec::parse("kivi2-hq4x4"); }

HeadReadings read_head(const DenseAttention& dense, std::span<const CodecSpec> key_specs,
                       std::span<const CodecSpec> value_specs) {
  const HeadSample& sample = dense.sample();
  HeadReadings out;
  out.layer = sample.layer;
  out.head = sample.head;
  out.n_group = sample.n_group;
  out.query_heads.assign(dense.heads().begin(), dense.heads().end());
  out.entropies.assign(dense.entropies().begin(), dense.entropies().end());
  for (const CodecSpec& spec : key_specs) {
    out.key_codecs.push_back({spec, spec.to_string(), key_bits(spec, sample)});
    out.keys.push_back(dense.read_keys(spec, sample.profile_for(spec)));
  }
  for (const CodecSpec& spec : value_specs) {
    out.value_codecs.push_back({spec, spec.to_string(), value_bits(spec, sample)});
    out.values.push_back(dense.read_values(spec, sample.profile_for(spec)));
  }
  return out;
}

std::vector<KeyCell> key_cells(std::span<const HeadReadings> heads,
                               std::span<const CodecSpec> specs) {
  std::vector<KeyCell> cells;
  for (size_t h = 0; h < heads.size(); ++h) {
    for (const CodecSpec& spec : specs) {
      const size_t codec = index_of(heads[h], spec);
      KeyCell base;
      base.source = h;
      base.codec = codec;
      base.bits = heads[h].key_codecs[codec].bits;
      base.own_rate = spec.is_nib();
      append_cells(heads[h], heads[h].keys[codec], base, cells);
    }
  }
  return cells;
}

std::vector<ValueCell> value_cells(std::span<const HeadReadings> heads) {
  std::vector<ValueCell> cells;
  for (size_t h = 0; h < heads.size(); ++h) {
    for (size_t codec = 0; codec < heads[h].values.size(); ++codec) {
      ValueCell base;
      base.source = h;
      base.codec = codec;
      base.bits = heads[h].value_codecs[codec].bits;
      base.own_rate = heads[h].value_codecs[codec].spec.is_nib();
      append_cells(heads[h], heads[h].values[codec], base, cells);
    }
  }
  return cells;
}

}  // namespace headq
