#include "codec/transform.h"

#include <cmath>

#include "core/random.h"

namespace headq {
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
  Random random(seed);
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
