#include "codec/transform.h"

#include <cmath>
#include <numbers>

namespace headq {
namespace {

// SplitMix64 (Steele, Lea, Flood 2014): a full-period 64-bit generator from one add and one mix.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Uniform in (0, 1].
  double uniform() { return (static_cast<double>(next() >> 11) + 1.0) * 0x1p-53; }

  // Standard normal (Box-Muller).
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace

void hadamard(float* x, int d) {
  const int block = d & -d;
  const float norm = 1.0f / std::sqrt(static_cast<float>(block));
  for (int b = 0; b < d; b += block) {
    float* y = x + b;
    for (int step = 1; step < block; step *= 2) {
      for (int i = 0; i < block; i += 2 * step) {
        for (int j = i; j < i + step; ++j) {
          const float sum = y[j] + y[j + step];
          y[j + step] = y[j] - y[j + step];
          y[j] = sum;
        }
      }
    }
    for (int i = 0; i < block; ++i) y[i] *= norm;
  }
}

std::vector<float> random_basis(int d, int r, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<std::vector<double>> rows;
  while (static_cast<int>(rows.size()) < r) {
    std::vector<double> row(static_cast<size_t>(d));
    for (double& x : row) x = random.normal();
    for (const auto& other : rows) {
      double dot = 0.0;
      for (int c = 0; c < d; ++c) dot += row[c] * other[c];
      for (int c = 0; c < d; ++c) row[c] -= dot * other[c];
    }
    double norm = 0.0;
    for (double x : row) norm += x * x;
    norm = std::sqrt(norm);
    if (norm < 1e-6) continue;  // numerically dependent on the rows before it
    for (double& x : row) x /= norm;
    rows.push_back(std::move(row));
  }
  std::vector<float> basis;
  basis.reserve(static_cast<size_t>(r) * static_cast<size_t>(d));
  for (const auto& row : rows) {
    for (double x : row) basis.push_back(static_cast<float>(x));
  }
  return basis;
}

}  // namespace headq
