#include "calibrate/nib_fit.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <numeric>

#include "calibrate/codebook.h"
#include "calibrate/rate.h"
#include "codec/transform.h"
#include "core/parallel.h"

namespace headq {
namespace {

using Matrix = Eigen::MatrixXd;
using Vector = Eigen::VectorXd;

constexpr double kMostWeight = 20.0;  // of a token, in multiples of the mean

enum class Side { kKeys, kValues };

// Symmetric square root and its inverse; eigenvalues below 1e-6 of the largest are raised to that.
struct Roots {
  Matrix root, inverse;

  explicit Roots(const Matrix& m) {
    const Eigen::SelfAdjointEigenSolver<Matrix> solver(m);
    const double floor = std::max(solver.eigenvalues().maxCoeff(), 1e-30) * 1e-6;
    const Vector values = solver.eigenvalues().cwiseMax(floor).cwiseSqrt();
    const Matrix& vectors = solver.eigenvectors();
    root = vectors * values.asDiagonal() * vectors.transpose();
    inverse = vectors * values.cwiseInverse().asDiagonal() * vectors.transpose();
  }
};

// One head's side before codewords: a transform after which errors count alike, and the variances
// there.
struct Analysed {
  Vector mean;
  Matrix analysis, synthesis;  // [d][d], a coordinate a row, strongest first
  std::vector<double> spectrum;
  std::vector<float> weights;
  double importance = 1.0;  // of the squared error, in comparison with other heads
};

std::vector<float> token_weights(const std::vector<float>& raw, double power) {
  std::vector<float> out(raw.size());
  double sum = 0.0;
  for (size_t i = 0; i < raw.size(); ++i) {
    out[i] = static_cast<float>(std::pow(std::max(raw[i], 0.0f), power));
    sum += out[i];
  }
  const double mean = sum / static_cast<double>(std::max<size_t>(raw.size(), 1));
  for (float& w : out) w = std::min(w, static_cast<float>(kMostWeight * mean));
  return out;
}

Matrix sample_rows(const NibHead& head, Side side) {
  const TokenSamples& samples = *head.samples;
  const int d = side == Side::kKeys ? samples.d_k() : samples.d_v();
  Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor> rows(
      static_cast<Eigen::Index>(samples.n()), d);
  for (size_t i = 0; i < samples.n(); ++i) {
    float* row = rows.row(static_cast<Eigen::Index>(i)).data();
    if (side == Side::kKeys) samples.key(i, row);
    else samples.value(i, row);
  }
  return rows.cast<double>();
}

Matrix metric_of(const NibOptions& options, const NibHead& head, Side side) {
  const int d = side == Side::kKeys ? head.samples->d_k() : head.samples->d_v();
  if (side == Side::kKeys ? !options.score_metric : !options.readout_metric) {
    return Matrix::Identity(d, d);
  }
  const Matrix m = side == Side::kValues
                       ? head.readout
                       : head.scale * head.scale * (options.fisher_weight ? head.fisher : head.second);
  const double level = m.trace() / d;
  return (1.0 - options.shrink) * m + options.shrink * level * Matrix::Identity(d, d);
}

Analysed analyse(const NibOptions& options, const NibHead& head, Side side, const CodecSpec& spec,
                 uint64_t seed) {
  Analysed out;
  const TokenSamples& samples = *head.samples;
  if (!options.token_weight) {
    out.weights.assign(samples.n(), 1.0f);
  } else if (side == Side::kKeys) {
    out.weights = token_weights(samples.key_weight(), 0.5);
  } else {
    out.weights = token_weights(samples.value_weight(), 1.0);
  }
  const Matrix rows = sample_rows(head, side);
  const Eigen::Index d = rows.cols();
  const Vector w = Eigen::Map<const Eigen::VectorXf>(out.weights.data(), rows.rows()).cast<double>();
  const double total = std::max(w.sum(), 1e-30);
  out.mean = Vector::Zero(d);
  if (side == Side::kValues || options.drop_key_mean) out.mean = rows.transpose() * w / total;
  const Matrix centred = rows.rowwise() - out.mean.transpose();
  const Matrix covariance = centred.transpose() * w.asDiagonal() * centred / total;
  const Roots metric(metric_of(options, head, side));
  const Matrix seen = metric.root * covariance * metric.root;

  Matrix basis;  // columns, strongest first
  if (spec.side_basis == SideBasis::kRandom) {
    const std::vector<float> random =
        random_basis(static_cast<int>(d), static_cast<int>(d), spec.seed * 0x9e3779b97f4a7c15u + seed);
    basis = Eigen::Map<const Eigen::MatrixXf>(random.data(), d, d).cast<double>();
    std::vector<Eigen::Index> order(static_cast<size_t>(d));
    std::iota(order.begin(), order.end(), 0);
    const Vector power = (basis.transpose() * seen * basis).diagonal();
    std::stable_sort(order.begin(), order.end(),
                     [&](Eigen::Index a, Eigen::Index b) { return power[a] > power[b]; });
    Matrix sorted(d, d);
    for (Eigen::Index c = 0; c < d; ++c) sorted.col(c) = basis.col(order[static_cast<size_t>(c)]);
    basis = sorted;
  } else {
    const Eigen::SelfAdjointEigenSolver<Matrix> solver(seen);
    basis = solver.eigenvectors().rowwise().reverse();
    for (Eigen::Index c = 0; c < d; ++c) {  // the solver's choice of sign must not matter
      Eigen::Index largest = 0;
      basis.col(c).cwiseAbs().maxCoeff(&largest);
      if (basis(largest, c) < 0.0) basis.col(c) = -basis.col(c);
    }
  }
  out.analysis = basis.transpose() * metric.root;
  out.synthesis = (metric.inverse * basis).transpose();
  const Vector power = (basis.transpose() * seen * basis).diagonal().cwiseMax(0.0);
  out.spectrum.assign(power.data(), power.data() + d);
  if (side == Side::kValues) {
    out.importance = std::accumulate(samples.value_weight().begin(), samples.value_weight().end(), 0.0) /
                     static_cast<double>(std::max<size_t>(samples.n(), 1));
  }
  return out;
}

std::vector<float> top_rows(const Matrix& m, int n) {
  std::vector<float> out;
  for (Eigen::Index r = 0; r < n; ++r) {
    for (Eigen::Index c = 0; c < m.cols(); ++c) out.push_back(static_cast<float>(m(r, c)));
  }
  return out;
}

NibCode fit_code(const Analysed& analysed, const Matrix& rows, std::span<const NibbleCut> cuts,
                 int reach, uint64_t seed) {
  const int n_coords = cuts.back().end;
  CodebookSamples samples;
  samples.n_coords = n_coords;
  samples.weights = analysed.weights;
  const Matrix y = (rows.rowwise() - analysed.mean.transpose()) *
                   analysed.analysis.topRows(n_coords).transpose();
  samples.rows = top_rows(y, static_cast<int>(y.rows()));
  FittedCodebook fitted = fit_codebook(samples, cuts, {.reach = reach, .seed = seed});
  NibCode code = std::move(fitted.code);
  for (Eigen::Index i = 0; i < analysed.mean.size(); ++i) {
    code.mean.push_back(static_cast<float>(analysed.mean[i]));
  }
  const double power =
      std::accumulate(analysed.spectrum.begin(), analysed.spectrum.end(), 0.0);
  const double left = std::accumulate(analysed.spectrum.begin() + n_coords, analysed.spectrum.end(), 0.0);
  code.power = static_cast<float>(power);
  code.error = std::min(static_cast<float>(fitted.error + left), code.power);
  code.analysis = top_rows(analysed.analysis, n_coords);
  code.synthesis = top_rows(analysed.synthesis, n_coords);
  return code;
}

// One side of all heads: transforms, and how nibbles are best spent.
class SideFit {
 public:
  SideFit(const NibOptions& options, std::span<const NibHead> heads, Side side)
      : options_(options), heads_(heads), side_(side), analysed_(heads.size()) {
    const CodecSpec& spec = side == Side::kKeys ? options.kv.k : options.kv.v;
    parallel_for(options.n_threads, heads.size(), [&](size_t h, int) {
      analysed_[h] = analyse(options, heads[h], side, spec, h);
    });
    for (const Analysed& a : analysed_) {
      curves_.emplace_back(a.spectrum, options.max_group);
      importance_.push_back(a.importance);
    }
  }

  // Nibbles of each head at a rate in bits per element.
  std::vector<int> nibbles(double rate) const {
    if (options_.allocate) {
      double elements = 0.0;
      for (const Analysed& a : analysed_) elements += static_cast<double>(a.spectrum.size());
      return allocate_nibbles(curves_, importance_, std::llround(elements * rate / 4.0));
    }
    std::vector<int> out;
    for (const Analysed& a : analysed_) {
      const double own = static_cast<double>(a.spectrum.size()) * rate / 4.0;
      out.push_back(std::max(1, static_cast<int>(std::lround(own))));
    }
    return out;
  }

  // Sum over the heads of what they are expected to leave at a rate.
  double expected_error(double rate) const {
    const std::vector<int> n = nibbles(rate);
    double sum = 0.0;
    for (size_t h = 0; h < n.size(); ++h) sum += importance_[h] * curves_[h].distortion(n[h]);
    return sum;
  }

  NibCode fit(size_t h, int n_nibbles) const {
    const int reach = side_ == Side::kKeys ? options_.key_reach : options_.value_reach;
    return fit_code(analysed_[h], sample_rows(heads_[h], side_), curves_[h].cut(n_nibbles), reach,
                    1 + h);
  }

 private:
  const NibOptions& options_;
  std::span<const NibHead> heads_;
  Side side_;
  std::vector<Analysed> analysed_;
  std::vector<RateCurve> curves_;
  std::vector<double> importance_;
};

}  // namespace

void fit_heads(const NibOptions& options, std::span<const NibHead> heads,
               std::span<HeadProfile> profiles) {
  std::mutex mutex;
  size_t done = 0;
  const size_t n_sides = static_cast<size_t>(options.kv.k.is_nib()) + options.kv.v.is_nib();
  for (Side side : {Side::kKeys, Side::kValues}) {
    const CodecSpec& spec = side == Side::kKeys ? options.kv.k : options.kv.v;
    if (!spec.is_nib()) continue;
    const SideFit fit(options, heads, side);
    const std::vector<int> nibbles = fit.nibbles(spec.rate);
    parallel_for(options.n_threads, heads.size(), [&](size_t h, int) {
      NibCode code = fit.fit(h, nibbles[h]);
      const std::lock_guard lock(mutex);
      (side == Side::kKeys ? profiles[h].key_nib : profiles[h].value_nib) = std::move(code);
      if (options.progress) options.progress(++done, heads.size() * n_sides);
    });
  }
}

std::vector<SideErrors> expected_errors(const NibOptions& options, std::span<const NibHead> heads,
                                        std::span<const SideRates> rates) {
  const SideFit keys(options, heads, Side::kKeys), values(options, heads, Side::kValues);
  std::vector<SideErrors> out;
  for (const SideRates& rate : rates) {
    out.push_back({keys.expected_error(rate.keys), values.expected_error(rate.values)});
  }
  return out;
}

}  // namespace headq
