#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "diagnose/head_sample.h"
#include "diagnose/metrics.h"
#include "headq/spec.h"

namespace headq {

// One head's sample read through a codec and compared with the dense read, query by query.

// What a coded key cache does to one query.
struct QueryDamage {
  ScoreDamage scores;
  double output_error = 0;  // |o' - o|^2 / d_v of the attention output, values dense
  bool flipped = false;     // another token is the likeliest
};

// Keys of a sample as one codec codes them. Queries run over the chunks in order.
struct KeyReading {
  double mse = 0;           // mean of |k' - k|^2 / d_k over coded rows
  double relative_mse = 0;  // that over the mean of |k - mean k|^2 / d_k of the same rows
  std::vector<QueryDamage> queries;
};

// Values of a sample as one codec codes them.
struct ValueQuery {
  double weighted = 0;      // sum_j p_j^2 |v'_j - v_j|^2 / d_v
  double output_error = 0;  // |sum_j p_j (v'_j - v_j)|^2 / d_v
};

struct ValueReading {
  double mse = 0;  // mean of |v' - v|^2 / d_v over coded rows
  double relative_mse = 0;
  std::vector<ValueQuery> queries;
};

// Codes rows [64][d] of a chunk from token `first` on, those of valid, into what they are read as.
using BlockCoder =
    std::function<void(size_t chunk, int first, const float* rows, uint64_t valid, float* coded)>;

// The dense attention of a sample's queries; made once, read against many codecs. Immutable and
// thread-safe. Memory: two doubles for each token and query of a chunk.
class DenseAttention {
 public:
  // The sample must outlive it.
  explicit DenseAttention(const HeadSample& sample);

  const HeadSample& sample() const { return sample_; }
  size_t n_queries() const { return entropies_.size(); }
  std::span<const double> entropies() const { return entropies_; }  // [n_queries], nats
  std::span<const int> heads() const { return heads_; }             // [n_queries], in the group

  // keys [chunk][n_tokens][d_k] in place of the sample's: what attention does with them when no
  // token is left dense. mse and relative_mse are over all rows.
  KeyReading read_keys(const std::vector<std::vector<float>>& keys) const;
  // The sample's keys and values through a codec: blocks of 64 tokens from the chunk's start, sinks
  // and recent rows dense. profile: where bases and means come from. Throws what make_key_codec()
  // throws; the spec must not be dense.
  KeyReading read_keys(const CodecSpec& spec, const HeadProfile& profile) const;
  ValueReading read_values(const CodecSpec& spec, const HeadProfile& profile) const;
  ValueReading read_values(const BlockCoder& coder) const;

 private:
  struct Chunk {
    std::vector<double> raw;  // [queries][n_tokens] scale q.k
    std::vector<double> p;    // [queries][n_tokens], 0 where not seen
  };
  struct Coded;

  void damage(size_t chunk, const Coded& coded, KeyReading& reading) const;

  const HeadSample& sample_;
  std::vector<Chunk> chunks_;
  std::vector<double> entropies_;
  std::vector<int> heads_;
};

// Bits per element of a packed block of keys or values under a spec.
double key_bits(const CodecSpec& spec, const HeadSample& sample);
double value_bits(const CodecSpec& spec, const HeadSample& sample);

// Mean of one figure over the queries of a reading: over all, or over one query head of the group.
template <typename Reading, typename Fn>
double query_mean(const Reading& reading, const Fn& figure) {
  double sum = 0;
  for (const auto& query : reading.queries) sum += figure(query);
  return sum / static_cast<double>(reading.queries.size());
}

inline double mean_kl(const KeyReading& reading) {
  return query_mean(reading, [](const QueryDamage& q) { return q.scores.kl; });
}

}  // namespace headq
