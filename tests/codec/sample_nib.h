#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "headq/profile.h"

namespace headq::testing {

// Orthonormal rows [d][d]: reflections of the unit vectors along random directions.
inline std::vector<float> random_rotation(int d, std::mt19937_64& random) {
  std::normal_distribution<double> normal;
  const size_t n = static_cast<size_t>(d);
  std::vector<double> m(n * n, 0.0);
  for (size_t i = 0; i < n; ++i) m[i * n + i] = 1.0;
  for (int turn = 0; turn < 3; ++turn) {
    std::vector<double> u(n);
    double square = 0.0;
    for (double& x : u) {
      x = normal(random);
      square += x * x;
    }
    for (size_t r = 0; r < n; ++r) {
      double dot = 0.0;
      for (size_t c = 0; c < n; ++c) dot += m[r * n + c] * u[c];
      for (size_t c = 0; c < n; ++c) m[r * n + c] -= 2.0 * dot / square * u[c];
    }
  }
  return {m.begin(), m.end()};
}

// A code with random tables: nibble g has `width` coordinates of its own and reaches those of the
// next one, as far as head_dim goes.
inline NibCode sample_nib(int d, int n_nibbles, int width, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::uniform_int_distribution<int> entry(-127, 127);
  std::uniform_real_distribution<float> scale(0.004f, 0.008f);
  NibCode code;
  for (int i = 0; i < d; ++i) code.mean.push_back(0.125f * static_cast<float>(i % 5) - 0.25f);
  const int n_coords = n_nibbles * width;
  std::vector<float> rotation = random_rotation(d, random);
  rotation.resize(static_cast<size_t>(n_coords * d));
  code.analysis = rotation;
  code.synthesis = rotation;
  for (int c = 0; c < n_coords; ++c) {  // not orthonormal, but still inverse to each other
    const float stretch = 0.5f + static_cast<float>(c % 3);
    for (int i = 0; i < d; ++i) {
      code.analysis[static_cast<size_t>(c * d + i)] *= stretch;
      code.synthesis[static_cast<size_t>(c * d + i)] /= stretch;
    }
  }
  for (int g = 0; g < n_nibbles; ++g) {
    code.reach.push_back(g * width);
    code.reach.push_back(std::min((g + 2) * width, n_coords));
    for (int c = g * width; c < code.reach.back(); ++c) {
      code.scale.push_back(scale(random));
      for (int n = 0; n < 16; ++n) code.codebook.push_back(static_cast<int8_t>(entry(random)));
    }
  }
  return code;
}

}  // namespace headq::testing
