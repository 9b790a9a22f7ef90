#include "bench/workload.h"

#include <cmath>
#include <cstdint>

#include "core/random.h"
#include "headq/calibrate.h"
#include "headq/spec.h"

namespace headq::bench {
namespace {

// Gaussian rows of d channels whose standard deviations fall off along the axes of a rotation.
class Source {
 public:
  // axes: the rotation; offset: of the mean; decay: ln of the largest deviation over the smallest.
  Source(int d, uint64_t axes, double offset, double decay) : d_(static_cast<size_t>(d)) {
    Random random(axes);
    for (auto& u : reflections_) {
      u.resize(d_);
      for (double& x : u) x = random.normal();
    }
    for (size_t i = 0; i < d_; ++i) {
      mean_.push_back(offset * random.normal());
      deviation_.push_back(std::exp(-decay * static_cast<double>(i) / static_cast<double>(d_)));
    }
  }

  double deviation(size_t i) const { return deviation_[i]; }

  void draw(Random& random, double scale, float* row) const {
    std::vector<double> x(d_);
    for (size_t i = 0; i < d_; ++i) x[i] = scale * deviation_[i] * random.normal();
    for (const auto& u : reflections_) {  // x -= 2 u (u.x) / |u|^2: orthogonal
      double dot = 0.0, square = 0.0;
      for (size_t i = 0; i < d_; ++i) {
        dot += u[i] * x[i];
        square += u[i] * u[i];
      }
      for (size_t i = 0; i < d_; ++i) x[i] -= 2.0 * dot / square * u[i];
    }
    for (size_t i = 0; i < d_; ++i) row[i] = static_cast<float>(x[i] + mean_[i]);
  }

 private:
  size_t d_;
  std::vector<double> reflections_[3];
  std::vector<double> mean_;
  std::vector<double> deviation_;
};

constexpr double kKeyDecay = 3.0, kValueDecay = 2.0, kQueryDecay = 2.0;
constexpr double kScoreDeviation = 2.0;

uint64_t axes_of(int head) { return 100 + static_cast<uint64_t>(head); }

std::vector<float> draw_heads(int n_rows, int n_head, int d, uint64_t first_axes, double offset,
                              double decay, Random& random) {
  std::vector<float> rows(static_cast<size_t>(n_rows) * static_cast<size_t>(n_head * d));
  std::vector<Source> sources;
  for (int h = 0; h < n_head; ++h) {
    sources.emplace_back(d, first_axes + static_cast<uint64_t>(h), offset, decay);
  }
  float* row = rows.data();
  for (int i = 0; i < n_rows; ++i) {
    for (const Source& source : sources) {
      source.draw(random, 1.0, row);
      row += d;
    }
  }
  return rows;
}

}  // namespace

Workload::Workload(const LayerShape& s, int n, uint64_t seed) : shape(s), n_tokens(n) {
  Random random(seed);
  keys = draw_heads(n, s.n_head_kv, s.d_k, axes_of(0), 1.0, kKeyDecay, random);
  values = draw_heads(n, s.n_head_kv, s.d_v, axes_of(s.n_head_kv), 0.1, kValueDecay, random);
}

float Workload::scale() const { return 1.0f / std::sqrt(static_cast<float>(shape.d_k)); }

std::vector<float> Workload::queries(int n_rows, int group, uint64_t seed) const {
  std::vector<Source> sources;  // on the axes of the keys
  std::vector<double> sizes;
  for (int h = 0; h < shape.n_head_kv; ++h) {
    const Source key(shape.d_k, axes_of(h), 0.0, kKeyDecay);
    const Source& query = sources.emplace_back(shape.d_k, axes_of(h), 0.0, kQueryDecay);
    double variance = 0.0;  // of q.k, before scaling
    for (size_t c = 0; c < static_cast<size_t>(shape.d_k); ++c) {
      variance += std::pow(query.deviation(c) * key.deviation(c), 2);
    }
    sizes.push_back(kScoreDeviation / (scale() * std::sqrt(variance)));
  }
  Random random(seed);
  std::vector<float> rows(static_cast<size_t>(n_rows * group) * key_row());
  float* row = rows.data();
  for (int i = 0; i < n_rows; ++i) {
    for (size_t h = 0; h < sources.size(); ++h) {
      for (int g = 0; g < group; ++g, row += shape.d_k) sources[h].draw(random, sizes[h], row);
    }
  }
  return rows;
}

std::vector<Half> causal_mask(int n_rows, int n_kv) {
  constexpr Half kMinusInfinity = 0xfc00;
  std::vector<Half> mask(static_cast<size_t>(n_rows) * static_cast<size_t>(n_kv), 0);
  for (int i = 0; i < n_rows; ++i) {
    for (int t = n_kv - n_rows + i + 1; t < n_kv; ++t) {
      mask[static_cast<size_t>(i) * static_cast<size_t>(n_kv) + static_cast<size_t>(t)] =
          kMinusInfinity;
    }
  }
  return mask;
}

Profile fitted_profile(const LayerShape& shape, const std::string& kv) {
  constexpr int kRows = 1024, kChunks = 2, kGroup = 2;
  const KvSpec spec = KvSpec::parse(kv);
  const bool has_nib = spec.k.is_nib() || spec.v.is_nib();
  Calibrator calibrator({.n_samples = has_nib ? kRows * kChunks : 0});
  for (uint64_t chunk = 0; chunk < kChunks; ++chunk) {
    const Workload text(shape, kRows, 10 + chunk);
    const std::vector<float> q = text.queries(kRows, kGroup, 20 + chunk);
    calibrator.begin_chunk();
    calibrator.observe({.n_rows = kRows,
                        .n_head = kGroup * shape.n_head_kv,
                        .n_head_kv = shape.n_head_kv,
                        .d_k = shape.d_k,
                        .d_v = shape.d_v,
                        .scale = text.scale(),
                        .q = q,
                        .k = text.keys,
                        .v = text.values,
                        .mask = {}});
  }
  Profile profile = calibrator.finish();
  if (has_nib) calibrator.fit_nib({.kv = spec}, profile);
  return profile;
}

}  // namespace headq::bench
