#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "codec/codec_kernels.h"

namespace headq {

// Empty when nibbles with this reach [n_nibbles][2] are a chain that a Trellis searches, else what is
// wrong with it.
std::string why_no_chain(std::span<const int32_t> reach, int n_coords);

// What the nibbles of a row stand for. A row of n coordinates is coded by nibbles n_0, n_1, ...; nibble g adds
// the codeword t_g[n_g] to the coordinates it reaches, and the next nibble may reach some of the same:
//
//   y^_c = sum over g that reach c of t_g[n_g]_c.
class Trellis {
 public:
  // reach [n_nibbles][2]: first coordinate and one past the last; the coordinates of nibble g + 2
  // and later start where those of nibble g have ended. table [n_terms][16], the terms of nibble 0
  // first. Throws Error(kInvalidArgument).
  Trellis(int n_coords, std::span<const int32_t> reach, std::vector<float> table,
          const CodecKernels& kernels = codec_kernels());

  int n_coords() const { return n_coords_; }
  int n_nibbles() const { return n_nibbles_; }
  std::span<const int> term_begin() const { return term_begin_; }  // [n_nibbles + 1]
  std::span<const int> coords() const { return coords_; }          // [n_terms]
  const CodecKernels& kernels() const { return *kernels_; }
  std::span<const float> table() const { return table_; }          // [n_terms][16]

  void decode(const uint8_t* nibbles, float* y) const;  // y [n_coords]

 private:
  int n_coords_;
  int n_nibbles_;
  std::vector<int> term_begin_;
  std::vector<int> coords_;
  std::vector<float> table_;
  const CodecKernels* kernels_;
};

// Finds the nibbles of rows: |y - y^|^2 is a sum of terms in n_g and in (n_g, n_{g+1}), so that the
// Viterbi algorithm over the 16 values of a nibble finds its least value exactly. Holds 1 KiB a nibble and
// takes as long to make as the search of a few rows: one for each block or more, not for each codec.
class TrellisSearch {
 public:
  // trellis must outlive it.
  explicit TrellisSearch(const Trellis& trellis);

  // The nibbles [n_nibbles] that come closest to y [n_coords]; of equals the smallest. Same on every
  // machine. Cost: 256 additions a nibble.
  void encode(const float* y, uint8_t* nibbles) const;

 private:
  const Trellis& trellis_;
  std::vector<float> norms_;  // [n_nibbles][16] |t_g[n]|^2
  std::vector<float> pairs_;  // [n_nibbles][16][16] 2 t_{g-1}[m] . t_g[n]
};

}  // namespace headq
