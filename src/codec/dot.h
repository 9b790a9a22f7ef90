#pragma once

#include <cstddef>

namespace headq {

// Dot product of n elements: eight sums side by side, because one would wait for each addition. The
// order of additions is the same on every machine.
inline float dot(const float* a, const float* b, size_t n) {
  float sum[8] = {};
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    for (size_t l = 0; l < 8; ++l) sum[l] += a[i + l] * b[i + l];
  }
  for (; i < n; ++i) sum[0] += a[i] * b[i];
  return ((sum[0] + sum[4]) + (sum[1] + sum[5])) + ((sum[2] + sum[6]) + (sum[3] + sum[7]));
}

}  // namespace headq
