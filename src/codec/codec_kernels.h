#pragma once

#include <cstddef>
#include <cstdint>

#include "core/isa.h"

namespace headq {

// What TrellisSearch works on; see there.
struct TrellisView {
  int n_nibbles;
  const int* term_begin;  // [n_nibbles + 1]
  const int* coords;      // [n_terms]
  const float* table;     // [n_terms][16]
  const float* norms;     // [n_nibbles][16]
  const float* pairs;     // [n_nibbles][16][16], those of nibble 0 are not looked at
};

inline constexpr int kMaxNibbles = 512;  // two for each of 256 coordinates

// The inner loops of codecs, one set per ISA level, all with the same bits: sums run in the order of
// the formulas, element by element, without fused multiply-adds.
struct CodecKernels {
  // y[c] = sum_i x[i] * columns[i][c] in the order of i; stride and y are multiples of 16.
  void (*transform)(const float* columns, int n_in, int stride, const float* x, float* y);

  // out[i] = in[i] as binary16, rounded to nearest even.
  void (*to_halves)(const float* in, size_t n, uint16_t* out);

  // The forward pass: from[g][n] is the nibble before nibble g in the cheapest way that ends there
  // with n, and cost[n] what the cheapest way that ends with n in the last nibble costs, by the sum of
  // norms - 2 t.y + pairs.
  void (*viterbi)(const TrellisView& trellis, const float* y, uint8_t (*from)[16], float* cost);

  // out[t] += table[nibble of token t] for the 64 tokens of one group's codes (BlockLayout).
  void (*add_lookups)(const uint8_t* codes, const float* table, float* out);
};

// The kernels of an ISA level, and those of the level that HEADQ_ISA asks for.
const CodecKernels& codec_kernels_for(Isa isa);
const CodecKernels& codec_kernels();

extern const CodecKernels kScalarCodecKernels;
#if defined(__x86_64__)
extern const CodecKernels kAvx2CodecKernels;
extern const CodecKernels kAvx512CodecKernels;
#elif defined(__aarch64__)
extern const CodecKernels kNeonCodecKernels;
#endif

}  // namespace headq
