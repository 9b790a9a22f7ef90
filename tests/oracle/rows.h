#pragma once

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <vector>

namespace oracle {

// Rows [n][d] with what breaks quantizers: two outlier channels, a large offset in a third, a
// sink-like first row, one zero row, denormals. All finite.
inline std::vector<float> awkward_rows(int n, int d, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> rows(static_cast<size_t>(n) * static_cast<size_t>(d));
  for (int t = 0; t < n; ++t) {
    for (int c = 0; c < d; ++c) {
      float x = normal(random);
      if (c == 3 || c == d - 2) x *= 12.0f;
      if (c == 5) x += 40.0f;
      rows[static_cast<size_t>(t * d + c)] = x;
    }
  }
  for (int c = 0; c < d; ++c) {
    rows[static_cast<size_t>(c)] *= 8.0f;
    if (n > 2) rows[static_cast<size_t>(2 * d + c)] = 0.0f;
    if (n > 4) rows[static_cast<size_t>(4 * d + c)] = 1e-40f;
  }
  return rows;
}

inline std::vector<float> normal_rows(int n, int d, uint64_t seed, float scale = 1.0f) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> rows(static_cast<size_t>(n) * static_cast<size_t>(d));
  for (float& x : rows) x = normal(random);
  return rows;
}

}  // namespace oracle
