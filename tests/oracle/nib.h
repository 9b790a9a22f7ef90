#pragma once

#include <cmath>
#include <limits>
#include <vector>

// The code nib of docs/nib.md written down naively in double precision. Shares nothing with src/.
namespace oracle {

struct Nib {
  std::vector<double> mean;                // [d]
  std::vector<double> analysis;            // [n_coords][d]
  std::vector<double> synthesis;           // [n_coords][d]
  std::vector<int> reach;                  // [n_nibbles][2], first coordinates ascending
  std::vector<double> scale;               // [n_terms]
  std::vector<std::vector<int>> codebook;  // [n_terms][16]

  size_t d() const { return mean.size(); }
  size_t n_coords() const { return analysis.size() / d(); }
  size_t n_nibbles() const { return reach.size() / 2; }
};

// What nibble g adds to coordinate c when it is n; 0 where it does not reach.
inline double nib_share(const Nib& code, const std::vector<size_t>& first_term, size_t g, size_t c,
                        size_t n) {
  const size_t first = static_cast<size_t>(code.reach[2 * g]);
  if (c < first || c >= static_cast<size_t>(code.reach[2 * g + 1])) return 0.0;
  const size_t term = first_term[g] + c - first;
  return code.scale[term] * code.codebook[term][n];
}

// The row that a row of d channels is coded as: the nibbles with the least sum of squared errors of
// the coordinates, found from left to right. A coordinate's error is known at the last nibble that
// reaches it, and no more than two do.
inline std::vector<double> nib_row(const Nib& code, const std::vector<double>& x) {
  const size_t n_coords = code.n_coords(), n_nibbles = code.n_nibbles();
  std::vector<double> y(n_coords, 0.0);
  for (size_t c = 0; c < n_coords; ++c) {
    for (size_t i = 0; i < code.d(); ++i)
      y[c] += code.analysis[c * code.d() + i] * (x[i] - code.mean[i]);
  }
  std::vector<size_t> first_term(1, 0);
  for (size_t g = 0; g < n_nibbles; ++g) {
    first_term.push_back(first_term.back() +
                         static_cast<size_t>(code.reach[2 * g + 1] - code.reach[2 * g]));
  }
  std::vector<double> cost(16, 0.0);
  std::vector<std::vector<size_t>> before(n_nibbles, std::vector<size_t>(16, 0));
  for (size_t g = 0; g < n_nibbles; ++g) {
    const size_t begin = static_cast<size_t>(code.reach[2 * g]);
    const size_t end = g + 1 < n_nibbles ? static_cast<size_t>(code.reach[2 * g + 2]) : n_coords;
    std::vector<double> next(16, std::numeric_limits<double>::infinity());
    for (size_t n = 0; n < 16; ++n) {
      for (size_t m = 0; m < (g == 0 ? 1u : 16u); ++m) {
        double sum = cost[m];
        for (size_t c = begin; c < end; ++c) {
          double e = y[c] - nib_share(code, first_term, g, c, n);
          if (g > 0) e -= nib_share(code, first_term, g - 1, c, m);
          sum += e * e;
        }
        if (sum < next[n]) {
          next[n] = sum;
          before[g][n] = m;
        }
      }
    }
    cost = next;
  }
  size_t n = 0;
  for (size_t m = 1; m < 16; ++m) {
    if (cost[m] < cost[n]) n = m;
  }
  std::vector<double> coded(n_coords, 0.0), out = code.mean;
  for (size_t g = n_nibbles; g-- > 0;) {
    for (size_t c = 0; c < n_coords; ++c) coded[c] += nib_share(code, first_term, g, c, n);
    n = before[g][n];
  }
  for (size_t c = 0; c < n_coords; ++c) {
    for (size_t i = 0; i < code.d(); ++i) out[i] += coded[c] * code.synthesis[c * code.d() + i];
  }
  return out;
}

}  // namespace oracle
