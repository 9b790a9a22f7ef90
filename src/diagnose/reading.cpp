#include "diagnose/reading.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>

#include "codec/codec.h"

namespace headq {
namespace {

using RowsD = Eigen::Matrix<double, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using RowsF = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

RowsD rows_of(std::span<const float> data, int d) {
  const Eigen::Index n = static_cast<Eigen::Index>(data.size()) / d;
  return Eigen::Map<const RowsF>(data.data(), n, d).cast<double>();
}

double capped(double raw, double softcap) {
  return softcap > 0 ? softcap * std::tanh(raw / softcap) : raw;
}

// What coding did to the rows of one chunk.
struct RowErrors {
  int begin = 0, end = 0;  // rows that are coded
  RowsD delta;             // [n_tokens][d], 0 for rows that are not
};

// Sums behind mse and relative_mse.
struct RowEnergy {
  double error = 0;
  double spread = 0;
  double n = 0;

  // rows: the dense rows [n_tokens][d].
  void add(const RowsD& rows, const RowErrors& errors) {
    const Eigen::Index count = errors.end - errors.begin;
    if (count <= 0) return;
    const auto coded = rows.middleRows(errors.begin, count);
    error += errors.delta.middleRows(errors.begin, count).squaredNorm();
    spread += (coded.rowwise() - coded.colwise().mean()).squaredNorm();
    n += static_cast<double>(count * rows.cols());
  }
  double mse() const { return error / n; }
  double relative() const { return spread > 0 ? error / spread : kNaN; }

  static constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
};

// The rows that a coder makes of a chunk's blocks [n_tokens][d], sinks left out, as errors of the dense
// ones.
RowErrors code_rows(const BlockCoder& coder, std::span<const float> data, int d,
                    const HeadSample& sample, size_t index) {
  const SampleChunk& chunk = sample.chunks[index];
  RowErrors out;
  for (const SampleQuery& query : chunk.queries) out.end = std::max(out.end, query.coded_end);
  out.begin = std::min(sample.sinks, out.end);
  out.delta = RowsD::Zero(chunk.n_tokens, d);
  std::vector<float> coded(static_cast<size_t>(kBlockTokens * d));
  for (int b = 0; b < out.end; b += kBlockTokens) {
    uint64_t valid = ~uint64_t{0};
    for (int t = 0; t < kBlockTokens && b + t < sample.sinks; ++t) valid &= ~(uint64_t{1} << t);
    const float* rows = data.data() + static_cast<std::ptrdiff_t>(b) * d;
    coder(index, b, rows, valid, coded.data());
    for (int t = 0; t < kBlockTokens; ++t) {
      if ((valid >> t & 1) == 0) continue;
      for (int c = 0; c < d; ++c) {
        out.delta(b + t, c) = static_cast<double>(coded[static_cast<size_t>(t * d + c)]) - rows[t * d + c];
      }
    }
  }
  return out;
}

BlockCoder coder_of(const Codec& codec) {
  return [&codec, block = std::vector<uint8_t>(codec.layout().bytes())](
             size_t, int, const float* rows, uint64_t valid, float* coded) mutable {
    codec.encode(rows, valid, block.data());
    for (int t = 0; t < kBlockTokens; ++t) codec.decode(block.data(), t, coded + t * codec.head_dim());
  };
}

double packed_bits(const Codec& codec) {
  return 8.0 * static_cast<double>(codec.layout().bytes()) / (kBlockTokens * codec.head_dim());
}

}  // namespace

struct DenseAttention::Coded {
  RowErrors errors;
  // True when queries see the coded rows wherever they look, false when their own blocks decide.
  bool everywhere = false;
};

DenseAttention::DenseAttention(const HeadSample& sample) : sample_(sample) {
  for (const SampleChunk& chunk : sample.chunks) {
    const Eigen::Index n = chunk.n_tokens;
    const Eigen::Index n_queries = static_cast<Eigen::Index>(chunk.queries.size());
    Chunk& out = chunks_.emplace_back();
    out.raw.resize(static_cast<size_t>(n_queries * n));
    out.p.assign(out.raw.size(), 0.0);
    Eigen::Map<RowsD>(out.raw.data(), n_queries, n).noalias() =
        static_cast<double>(sample.scale) * rows_of(chunk.q, sample.d_k) *
        rows_of(chunk.k, sample.d_k).transpose();
    std::vector<double> scores;
    for (size_t i = 0; i < chunk.queries.size(); ++i) {
      const SampleQuery& query = chunk.queries[i];
      const size_t at = i * static_cast<size_t>(n) + static_cast<size_t>(query.first);
      const size_t n_visible = static_cast<size_t>(query.n_visible());
      scores.clear();
      for (size_t j = 0; j < n_visible; ++j) {
        scores.push_back(capped(out.raw[at + j], sample.softcap));
      }
      const std::span<double> p(out.p.data() + at, n_visible);
      softmax(scores, p);
      entropies_.push_back(entropy(p));
      heads_.push_back(query.head);
    }
  }
}

void DenseAttention::damage(size_t index, const Coded& coded, KeyReading& reading) const {
  const SampleChunk& chunk = sample_.chunks[index];
  const Chunk& dense = chunks_[index];
  const Eigen::Index n = chunk.n_tokens;
  const Eigen::Index n_queries = static_cast<Eigen::Index>(chunk.queries.size());
  RowsD raw_delta = static_cast<double>(sample_.scale) * rows_of(chunk.q, sample_.d_k) *
                    coded.errors.delta.transpose();
  RowsD p_delta = RowsD::Zero(n_queries, n);
  std::vector<double> delta, p_coded;
  const size_t first_query = reading.queries.size();
  for (Eigen::Index i = 0; i < n_queries; ++i) {
    const SampleQuery& query = chunk.queries[static_cast<size_t>(i)];
    const size_t n_visible = static_cast<size_t>(query.n_visible());
    const size_t at = static_cast<size_t>(i * n + query.first);
    const double* raw = dense.raw.data() + at;
    const std::span<const double> p(dense.p.data() + at, n_visible);
    delta.assign(n_visible, 0.0);
    p_coded.resize(n_visible);
    const int end = coded.everywhere ? query.position + 1 : query.coded_end;
    for (int j = query.first; j < end; ++j) {
      const size_t o = static_cast<size_t>(j - query.first);
      const double d = raw_delta(i, j);
      delta[o] = sample_.softcap > 0
                     ? capped(raw[o] + d, sample_.softcap) - capped(raw[o], sample_.softcap)
                     : d;
    }
    QueryDamage& out = reading.queries.emplace_back();
    out.scores = score_damage(p, delta);
    reweigh(p, delta, p_coded);
    out.flipped = top_index(p_coded) != top_index(p);
    for (size_t o = 0; o < n_visible; ++o) {
      p_delta(i, query.first + static_cast<Eigen::Index>(o)) = p_coded[o] - p[o];
    }
  }
  const RowsD output_delta = p_delta * rows_of(chunk.v, sample_.d_v);
  for (Eigen::Index i = 0; i < n_queries; ++i) {
    reading.queries[first_query + static_cast<size_t>(i)].output_error =
        output_delta.row(i).squaredNorm() / sample_.d_v;
  }
}

KeyReading DenseAttention::read_keys(const std::vector<std::vector<float>>& keys) const {
  KeyReading reading;
  RowEnergy energy;
  for (size_t c = 0; c < sample_.chunks.size(); ++c) {
    const RowsD dense = rows_of(sample_.chunks[c].k, sample_.d_k);
    Coded coded;
    coded.everywhere = true;
    coded.errors = {0, sample_.chunks[c].n_tokens, rows_of(keys[c], sample_.d_k) - dense};
    energy.add(dense, coded.errors);
    damage(c, coded, reading);
  }
  reading.mse = energy.mse();
  reading.relative_mse = energy.relative();
  return reading;
}

KeyReading DenseAttention::read_keys(const CodecSpec& spec, const HeadProfile& profile) const {
  const auto codec = make_key_codec(spec, sample_.d_k, &profile, sample_.layer, sample_.head);
  KeyReading reading;
  RowEnergy energy;
  for (size_t c = 0; c < sample_.chunks.size(); ++c) {
    const SampleChunk& chunk = sample_.chunks[c];
    Coded coded;
    coded.errors = code_rows(coder_of(*codec), chunk.k, sample_.d_k, sample_, c);
    energy.add(rows_of(chunk.k, sample_.d_k), coded.errors);
    damage(c, coded, reading);
  }
  reading.mse = energy.mse();
  reading.relative_mse = energy.relative();
  return reading;
}

ValueReading DenseAttention::read_values(const CodecSpec& spec, const HeadProfile& profile) const {
  const auto codec = make_value_codec(spec, sample_.d_v, &profile);
  return read_values(coder_of(*codec));
}

ValueReading DenseAttention::read_values(const BlockCoder& coder) const {
  ValueReading reading;
  RowEnergy energy;
  for (size_t c = 0; c < sample_.chunks.size(); ++c) {
    const SampleChunk& chunk = sample_.chunks[c];
    const RowErrors errors = code_rows(coder, chunk.v, sample_.d_v, sample_, c);
    energy.add(rows_of(chunk.v, sample_.d_v), errors);
    const Eigen::VectorXd row_errors = errors.delta.rowwise().squaredNorm();
    for (size_t i = 0; i < chunk.queries.size(); ++i) {
      const SampleQuery& query = chunk.queries[i];
      const Eigen::Index first = query.first, count = query.coded_end - first;
      const Eigen::Map<const Eigen::VectorXd> p(
          chunks_[c].p.data() + i * static_cast<size_t>(chunk.n_tokens) + first, count);
      reading.queries.push_back(
          {p.cwiseAbs2().dot(row_errors.segment(first, count)) / sample_.d_v,
           (p.transpose() * errors.delta.middleRows(first, count)).squaredNorm() / sample_.d_v});
    }
  }
  reading.mse = energy.mse();
  reading.relative_mse = energy.relative();
  return reading;
}

double key_bits(const CodecSpec& spec, const HeadSample& sample) {
  const HeadProfile profile = sample.profile_for(spec);
  return packed_bits(*make_key_codec(spec, sample.d_k, &profile, sample.layer, sample.head));
}

double value_bits(const CodecSpec& spec, const HeadSample& sample) {
  const HeadProfile profile = sample.profile_for(spec);
  return packed_bits(*make_value_codec(spec, sample.d_v, &profile));
}

}  // namespace headq
