#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "oracle/half.h"

// Min-max quantization written down naively in double precision. Shares nothing with src/; halves
// come from the compiler's own type.
namespace oracle {

inline double as_half(double x) {
  return static_cast<double>(static_cast<CompilerHalf>(static_cast<float>(x)));
}

// What min-max quantization of x to codes 0..levels leaves, with f16 scale and zero. step: the
// grid is every step-th level.
inline std::vector<double> min_max(const std::vector<double>& x, int levels, int step = 1) {
  double lo = INFINITY, hi = -INFINITY;
  for (double v : x) {
    lo = std::min(lo, v);
    hi = std::max(hi, v);
  }
  const double zero = as_half(lo);
  const double scale = as_half((hi - zero) / levels);
  std::vector<double> out;
  for (double v : x) {
    double code = scale > 0 ? std::nearbyint((v - zero) / (scale * step)) : 0.0;
    code = std::clamp(code, 0.0, static_cast<double>(levels / step));
    out.push_back(zero + scale * step * code);
  }
  return out;
}

// Rows [n][d]: each channel over all rows (KIVI keys).
inline std::vector<double> per_channel(const std::vector<double>& rows, int n, int d, int bits) {
  std::vector<double> out(rows.size());
  for (int c = 0; c < d; ++c) {
    std::vector<double> column;
    for (int t = 0; t < n; ++t) column.push_back(rows[static_cast<size_t>(t * d + c)]);
    const std::vector<double> coded = min_max(column, (1 << bits) - 1);
    for (int t = 0; t < n; ++t) out[static_cast<size_t>(t * d + c)] = coded[static_cast<size_t>(t)];
  }
  return out;
}

// Rows [n][d]: each row in groups of `group` channels (KIVI values, token codecs).
inline std::vector<double> per_token(const std::vector<double>& rows, int n, int d, int bits, int group) {
  std::vector<double> out(rows.size());
  for (int t = 0; t < n; ++t) {
    for (int begin = 0; begin < d; begin += group) {
      const int end = std::min(d, begin + group);
      const std::vector<double> part(rows.begin() + t * d + begin, rows.begin() + t * d + end);
      const std::vector<double> coded = min_max(part, (1 << bits) - 1);
      std::copy(coded.begin(), coded.end(), out.begin() + t * d + begin);
    }
  }
  return out;
}

// Adds U Q(U^T (k - base)) to base, U given as rows [r][d], 4 bits per coefficient over the n rows.
inline std::vector<double> with_side_code(const std::vector<double>& rows,
                                          const std::vector<double>& base, int n, int d,
                                          const std::vector<double>& u, int r, double sign) {
  std::vector<double> out = base;
  for (int j = 0; j < r; ++j) {
    std::vector<double> z;
    for (int t = 0; t < n; ++t) {
      double dot = 0.0;
      for (int c = 0; c < d; ++c) {
        const size_t i = static_cast<size_t>(t * d + c);
        dot += u[static_cast<size_t>(j * d + c)] * (rows[i] - base[i]);
      }
      z.push_back(dot);
    }
    const std::vector<double> coded = min_max(z, 15);
    for (int t = 0; t < n; ++t) {
      for (int c = 0; c < d; ++c) {
        out[static_cast<size_t>(t * d + c)] +=
            sign * coded[static_cast<size_t>(t)] * u[static_cast<size_t>(j * d + c)];
      }
    }
  }
  return out;
}

// Orthonormal Hadamard matrix of order n (a power of two) times each block of n elements of a row.
inline std::vector<double> hadamard_row(const std::vector<double>& row) {
  const int d = static_cast<int>(row.size());
  int n = 1;
  while (d % (2 * n) == 0) n *= 2;
  std::vector<double> out(row.size(), 0.0);
  for (int b = 0; b < d; b += n) {
    for (int i = 0; i < n; ++i) {
      for (int j = 0; j < n; ++j) {
        const double sign = __builtin_parity(static_cast<unsigned>(i & j)) != 0 ? -1.0 : 1.0;
        out[static_cast<size_t>(b + i)] += sign * row[static_cast<size_t>(b + j)] / std::sqrt(n);
      }
    }
  }
  return out;
}

}  // namespace oracle
