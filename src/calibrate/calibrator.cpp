#include <fmt/format.h>

#include <Eigen/Dense>
#include <algorithm>
#include <vector>

#include "attention/attention.h"
#include "calibrate/attention_stats.h"
#include "calibrate/nib_fit.h"
#include "calibrate/samples.h"
#include "core/parallel.h"
#include "headq/calibrate.h"
#include "headq/error.h"
#include "headq/spec.h"

namespace headq {
namespace {

using Matrix = Eigen::MatrixXd;
using Vector = Eigen::VectorXd;
using RowMajor = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
using Rows = Eigen::Map<const RowMajor, 0, Eigen::OuterStride<>>;

// First and second moments of one kind of row.
struct Moments {
  double n = 0.0;
  Vector sum;
  Matrix outer;

  explicit Moments(int d) : sum(Vector::Zero(d)), outer(Matrix::Zero(d, d)) {}

  void add(const Rows& rows) {
    const Matrix x = rows.cast<double>();
    n += static_cast<double>(x.rows());
    sum += x.colwise().sum().transpose();
    outer.selfadjointView<Eigen::Lower>().rankUpdate(x.transpose());
  }
  Vector mean() const { return sum / n; }
  Matrix second() const { return Matrix(outer.selfadjointView<Eigen::Lower>()) / n; }
  Matrix covariance() const { return second() - mean() * mean().transpose(); }
};

// E[w q q^T] over the queries.
struct WeightedMoment {
  Matrix outer;

  explicit WeightedMoment(int d) : outer(Matrix::Zero(d, d)) {}

  void add(const Rows& rows, std::span<const float> weights) {
    const Eigen::Map<const Eigen::VectorXf> w(weights.data(), rows.rows());
    const Matrix x = w.cast<double>().cwiseMax(0.0).cwiseSqrt().asDiagonal() * rows.cast<double>();
    outer.selfadjointView<Eigen::Lower>().rankUpdate(x.transpose());
  }
  Matrix mean(double n) const { return Matrix(outer.selfadjointView<Eigen::Lower>()) / n; }
};

struct Head {
  Moments q, k, v;
  WeightedMoment fisher;  // queries by AttentionStats::query_fisher
  std::vector<double> squares;  // [query heads of the group] sum of p^2 over packed tokens

  Head(int d_k, int d_v) : q(d_k), k(d_k), v(d_v), fisher(d_k) {}
};

std::vector<float> to_floats(const Vector& v) {
  std::vector<float> out(static_cast<size_t>(v.size()));
  for (Eigen::Index i = 0; i < v.size(); ++i) out[static_cast<size_t>(i)] = static_cast<float>(v[i]);
  return out;
}

// Eigenvectors of a symmetric matrix, strongest first, as rows [n_basis][d]; the largest component
// of each is positive, so that the file does not depend on the solver's choice of sign.
void eigen_basis(const Matrix& m, int n_basis, std::vector<float>& basis,
                 std::vector<float>& spectrum) {
  const Eigen::SelfAdjointEigenSolver<Matrix> solver(m);
  const Eigen::Index d = m.rows();
  for (Eigen::Index j = 0; j < d; ++j) {
    spectrum.push_back(static_cast<float>(std::max(solver.eigenvalues()[d - 1 - j], 0.0)));
  }
  for (int j = 0; j < n_basis; ++j) {
    Vector u = solver.eigenvectors().col(d - 1 - j);
    Eigen::Index largest = 0;
    u.cwiseAbs().maxCoeff(&largest);
    if (u[largest] < 0.0) u = -u;
    const std::vector<float> row = to_floats(u);
    basis.insert(basis.end(), row.begin(), row.end());
  }
}

HeadProfile head_profile(const Head& head, int n_basis) {
  HeadProfile out;
  const Matrix query_moment = head.q.second();
  const Matrix key_covariance = head.k.covariance();
  eigen_basis(query_moment, n_basis, out.query_basis, out.query_spectrum);
  eigen_basis(key_covariance, n_basis, out.key_basis, out.key_spectrum);
  out.key_mean = to_floats(head.k.mean());
  out.query_energy = to_floats(query_moment.diagonal());
  out.key_variance = to_floats(key_covariance.diagonal().cwiseMax(0.0));
  out.value_variance = to_floats(head.v.covariance().diagonal().cwiseMax(0.0));
  return out;
}

// [d][n_padded] of rows [n][d] that lie stride apart, zeros behind n.
std::vector<float> transposed(const float* rows, size_t stride, size_t n, size_t d, size_t n_padded) {
  std::vector<float> out(d * n_padded, 0.0f);
  for (size_t i = 0; i < n; ++i) {
    for (size_t c = 0; c < d; ++c) out[c * n_padded + i] = rows[i * stride + c];
  }
  return out;
}

// The readout metric of a KV head: its query heads', weighted by their squared attention.
Matrix group_readout(const LayerReadout& readout, const Head& head, size_t kv_head) {
  const Eigen::Index d = readout.d_v;
  const size_t group = head.squares.size();
  Matrix sum = Matrix::Zero(d, d);
  double total = 0.0;
  for (size_t g = 0; g < group; ++g) {
    const float* metric = readout.metric.data() + (kv_head * group + g) * static_cast<size_t>(d * d);
    sum += head.squares[g] * Eigen::Map<const RowMajor>(metric, d, d).cast<double>();
    total += head.squares[g];
  }
  return total > 0.0 ? Matrix(sum / total) : Matrix::Identity(d, d);
}

void check_span(size_t size, size_t wanted, const char* what) {
  if (size == wanted) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("observation: {} has {} floats, its shape says {}", what, size, wanted));
}

}  // namespace

struct Calibrator::Layer {
  LayerShape shape;
  size_t n_head = 0;   // query heads
  double scale = 1.0;  // of logits
  int position = 0;  // of the next observation's first row
  uint64_t n_tokens = 0;
  std::vector<Head> heads;
  std::vector<TokenSamples> samples;  // [heads], or empty
  Random random{1};                   // which tokens are kept; alike in all layers

  Layer(const LayerShape& s, int n_samples) : shape(s) {
    for (int h = 0; h < s.n_head_kv; ++h) {
      heads.emplace_back(s.d_k, s.d_v);
      if (n_samples > 0) samples.emplace_back(s.d_k, s.d_v, static_cast<size_t>(n_samples));
    }
  }
};

// What the codes of all heads are fitted to.
std::vector<NibHead> Calibrator::nib_heads() const {
  std::vector<NibHead> heads;
  const bool has_readout = std::all_of(layers_.begin(), layers_.end(), [this](const auto& layer) {
    return readouts_.count(layer.first) != 0;
  });
  for (const auto& [il, layer] : layers_) {
    if (layer->samples.empty()) {
      throw Error(ErrorCode::kInvalidArgument, "no samples were kept to fit codes of nib");
    }
    for (size_t h = 0; h < layer->heads.size(); ++h) {
      const Head& head = layer->heads[h];
      const double n = head.q.n;  // queries of the whole group
      heads.push_back({.samples = &layer->samples[h],
                       .scale = layer->scale,
                       .second = head.q.second(),
                       .fisher = head.fisher.mean(n),
                       .readout = has_readout ? group_readout(readouts_.at(il), head, h)
                                              : Matrix::Identity(layer->shape.d_v, layer->shape.d_v)});
    }
  }
  return heads;
}

Calibrator::Calibrator(const CalibratorOptions& options) : options_(options) {}
Calibrator::~Calibrator() = default;

void Calibrator::begin_chunk() {
  for (auto& [il, layer] : layers_) layer->position = 0;
}

void Calibrator::observe(const Observation& o) {
  const size_t rows = static_cast<size_t>(o.n_rows);
  const size_t d_k = static_cast<size_t>(o.d_k), d_v = static_cast<size_t>(o.d_v);
  const size_t n_head = static_cast<size_t>(o.n_head), n_kv = static_cast<size_t>(o.n_head_kv);
  check_span(o.q.size(), rows * n_head * d_k, "q");
  check_span(o.k.size(), rows * n_kv * d_k, "k");
  check_span(o.v.size(), rows * n_kv * d_v, "v");

  const LayerShape shape{.n_head_kv = o.n_head_kv, .d_k = o.d_k, .d_v = o.d_v};
  auto& layer = layers_[o.layer];
  if (layer == nullptr) layer = std::make_unique<Layer>(shape, options_.n_samples);
  if (!(layer->shape == shape)) {
    throw Error(ErrorCode::kMismatch, fmt::format("layer {} changed its shape", o.layer));
  }
  layer->scale = o.scale;
  layer->n_head = n_head;
  const int skip = std::clamp(options_.skip_first - layer->position, 0, o.n_rows);
  layer->position += o.n_rows;
  const Eigen::Index n = o.n_rows - skip;
  if (n == 0) return;
  const uint64_t n_before = layer->n_tokens;
  layer->n_tokens += static_cast<uint64_t>(n);

  const size_t first = static_cast<size_t>(skip);
  const size_t group = n_head / n_kv;
  const auto view = [n, first](std::span<const float> data, size_t row_floats, size_t offset,
                               size_t d) {
    return Rows(data.data() + first * row_floats + offset, n, static_cast<Eigen::Index>(d),
                Eigen::OuterStride<>(static_cast<Eigen::Index>(row_floats)));
  };
  std::vector<KeptToken> kept;
  if (options_.n_samples > 0) {
    kept = choose_tokens(n_before, static_cast<size_t>(n), static_cast<size_t>(options_.n_samples),
                         layer->random);
  }
  const std::vector<float> slopes = alibi_slopes(o.n_head, o.max_bias);
  parallel_for(options_.n_threads, n_kv, [&](size_t h, int) {
    Head& head = layer->heads[h];
    const Rows k = view(o.k, n_kv * d_k, h * d_k, d_k), v = view(o.v, n_kv * d_v, h * d_v, d_v);
    head.k.add(k);
    head.v.add(v);
    for (size_t g = 0; g < group; ++g) {
      head.q.add(view(o.q, n_head * d_k, (h * group + g) * d_k, d_k));
    }
    if (options_.n_samples == 0) return;

    const size_t n_padded = (rows + 15) / 16 * 16;
    const std::vector<float> columns = transposed(o.k.data() + h * d_k, n_kv * d_k, rows, d_k, n_padded);
    std::vector<float> key_weight(rows, 0.0f), value_weight(rows, 0.0f);
    for (size_t g = 0; g < group; ++g) {
      const size_t q_head = h * group + g;
      const AttentionStats stats({.n_rows = o.n_rows,
                                  .d = o.d_k,
                                  .scale = o.scale,
                                  .softcap = o.softcap,
                                  .slope = slopes[q_head],
                                  .q = o.q.data() + q_head * d_k,
                                  .q_stride = n_head * d_k,
                                  .k_columns = columns.data(),
                                  .n_padded = n_padded,
                                  .mask = o.mask},
                                 skip, options_.lag);
      const Rows q = view(o.q, n_head * d_k, q_head * d_k, d_k);
      head.fisher.add(q, std::span(stats.query_fisher).subspan(first));
      head.squares.resize(group, 0.0);
      for (size_t i = 0; i < rows; ++i) {
        key_weight[i] += stats.key_weight[i];
        value_weight[i] += stats.value_weight[i];
        head.squares[g] += stats.value_weight[i];
      }
    }
    for (const KeptToken& token : kept) {
      const Eigen::Index row = static_cast<Eigen::Index>(token.row);
      layer->samples[h].set(token.slot, k.row(row).data(), v.row(row).data(),
                            key_weight[first + token.row], value_weight[first + token.row]);
    }
  });
}

bool Calibrator::set_readout(int layer, LayerReadout readout) {
  const auto it = layers_.find(layer);
  if (it == layers_.end() || it->second->shape.d_v != readout.d_v ||
      readout.metric.size() != it->second->n_head * static_cast<size_t>(readout.d_v * readout.d_v)) {
    return false;
  }
  readouts_[layer] = std::move(readout);
  return true;
}

uint64_t Calibrator::n_tokens() const {
  return layers_.empty() ? 0 : layers_.begin()->second->n_tokens;
}

Profile Calibrator::finish() const {
  Profile profile;
  profile.n_tokens = n_tokens();
  profile.n_basis = kMaxSideRank;
  for (const auto& [il, layer] : layers_) {
    profile.n_basis = std::min(profile.n_basis, layer->shape.d_k);
  }
  for (const auto& [il, layer] : layers_) {
    if (layer->n_tokens < static_cast<uint64_t>(layer->shape.d_k)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("{} calibration tokens are fewer than head_dim {}", layer->n_tokens,
                              layer->shape.d_k));
    }
    profile.layer_ids.push_back(il);
    profile.shapes.push_back(layer->shape);
    for (const Head& head : layer->heads) {
      profile.heads.push_back(head_profile(head, profile.n_basis));
    }
  }
  return profile;
}

void Calibrator::fit_nib(const NibOptions& options, Profile& profile) const {
  const std::vector<NibHead> heads = nib_heads();
  fit_heads(options, heads, profile.heads);
  profile.nib = options.kv.to_string();
}

std::vector<SideErrors> Calibrator::expected_errors(const NibOptions& options,
                                                    std::span<const SideRates> rates) const {
  return headq::expected_errors(options, nib_heads(), rates);
}

}  // namespace headq
