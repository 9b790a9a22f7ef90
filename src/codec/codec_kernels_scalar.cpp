#include "codec/codec_kernels.h"
#include "core/half.h"

namespace headq {
namespace {

void transform(const float* columns, int n_in, int stride, const float* x, float* y) {
  for (int c = 0; c < stride; ++c) y[c] = 0.0f;
  for (int i = 0; i < n_in; ++i) {
    for (int c = 0; c < stride; ++c) y[c] += x[i] * columns[i * stride + c];
  }
}

void to_halves(const float* in, size_t n, uint16_t* out) {
  for (size_t i = 0; i < n; ++i) out[i] = float_to_half(in[i]);
}

void viterbi(const TrellisView& v, const float* y, uint8_t (*from)[16], float* cost) {
  for (int n = 0; n < 16; ++n) cost[n] = 0.0f;
  for (int g = 0; g < v.n_nibbles; ++g) {
    float next[16];
    for (int n = 0; n < 16; ++n) {
      float least = g == 0 ? 0.0f : cost[0] + v.pairs[g * 256 + n];
      uint8_t best = 0;
      for (int m = 1; m < 16 && g > 0; ++m) {
        const float c = cost[m] + v.pairs[(g * 16 + m) * 16 + n];
        if (c < least) {
          least = c;
          best = static_cast<uint8_t>(m);
        }
      }
      next[n] = least + v.norms[g * 16 + n];
      from[g][n] = best;
    }
    for (int i = v.term_begin[g]; i < v.term_begin[g + 1]; ++i) {
      const float twice = -2.0f * y[v.coords[i]];
      for (int n = 0; n < 16; ++n) next[n] += twice * v.table[i * 16 + n];
    }
    for (int n = 0; n < 16; ++n) cost[n] = next[n];
  }
}

void add_lookups(const uint8_t* codes, const float* table, float* out) {
  for (int t = 0; t < 32; ++t) {
    out[t] += table[codes[t] & 15];
    out[t + 32] += table[codes[t] >> 4];
  }
}

}  // namespace

const CodecKernels kScalarCodecKernels = {transform, to_halves, viterbi, add_lookups};

}  // namespace headq
