#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibrate/rate.h"
#include "headq/profile.h"

namespace headq {

// Weighted samples of the coordinates that are to be coded.
struct CodebookSamples {
  int n_coords = 0;
  std::vector<float> rows;     // [n][n_coords]
  std::vector<float> weights;  // [n], not negative

  size_t n() const { return weights.size(); }
  const float* row(size_t i) const { return rows.data() + i * static_cast<size_t>(n_coords); }
};

struct CodebookOptions {
  int reach = 8;         // nibbles also reach the coordinates of the next one, if at most so many
  int n_annealed = 30;    // first turns, on some of the rows, with noise that dies away
  int n_iterations = 6;   // turns on all rows
  uint64_t seed = 1;
};

// A fitted code: reach, scale and codebook of `code` are set.
struct FittedCodebook {
  NibCode code;
  double error = 0.0;  // weighted mean of |y - y^|^2 over the samples
};

// Fits codewords to samples: weighted k-means per nibble, then, in turn, the best nibbles of every
// row (Trellis) and the least-squares codewords for these nibbles; noise on the codewords keeps the
// first turns from settling in a poor optimum. Deterministic.
FittedCodebook fit_codebook(const CodebookSamples& samples, std::span<const NibbleCut> cuts,
                            const CodebookOptions& options);

}  // namespace headq
