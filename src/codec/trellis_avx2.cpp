#include <immintrin.h>

#include "codec/trellis_kernels.h"

namespace headq {
namespace {

void transform(const float* columns, int n_in, int stride, const float* x, float* y) {
  for (int c = 0; c < stride; c += 16) {
    __m256 lo = _mm256_setzero_ps(), hi = _mm256_setzero_ps();
    for (int i = 0; i < n_in; ++i) {
      const float* column = columns + i * stride + c;
      const __m256 a = _mm256_set1_ps(x[i]);
      lo = _mm256_add_ps(lo, _mm256_mul_ps(a, _mm256_loadu_ps(column)));
      hi = _mm256_add_ps(hi, _mm256_mul_ps(a, _mm256_loadu_ps(column + 8)));
    }
    _mm256_storeu_ps(y + c, lo);
    _mm256_storeu_ps(y + c + 8, hi);
  }
}

// The best nibble before each of 8 values; a later one wins only when it is strictly less.
struct Best {
  __m256 cost;
  __m256i from;
};

Best best_of(const float* cost, const float* pairs) {
  Best best = {_mm256_add_ps(_mm256_set1_ps(cost[0]), _mm256_loadu_ps(pairs)),
               _mm256_setzero_si256()};
  for (int m = 1; m < 16; ++m) {
    const __m256 c = _mm256_add_ps(_mm256_set1_ps(cost[m]), _mm256_loadu_ps(pairs + m * 16));
    const __m256 less = _mm256_cmp_ps(c, best.cost, _CMP_LT_OQ);
    best.cost = _mm256_blendv_ps(best.cost, c, less);
    best.from = _mm256_blendv_epi8(best.from, _mm256_set1_epi32(m), _mm256_castps_si256(less));
  }
  return best;
}

void viterbi(const TrellisView& v, const float* y, uint8_t* nibbles) {
  int32_t from[kMaxNibbles][16];
  float cost[16] = {};
  for (int g = 0; g < v.n_nibbles; ++g) {
    float next[16];
    for (int half = 0; half < 16; half += 8) {
      Best best = {_mm256_setzero_ps(), _mm256_setzero_si256()};
      if (g > 0) best = best_of(cost, v.pairs + g * 256 + half);
      __m256 sum = _mm256_add_ps(best.cost, _mm256_loadu_ps(v.norms + g * 16 + half));
      for (int i = v.term_begin[g]; i < v.term_begin[g + 1]; ++i) {
        const __m256 twice = _mm256_set1_ps(-2.0f * y[v.coords[i]]);
        sum = _mm256_add_ps(sum, _mm256_mul_ps(twice, _mm256_loadu_ps(v.table + i * 16 + half)));
      }
      _mm256_storeu_ps(next + half, sum);
      _mm256_storeu_si256(reinterpret_cast<__m256i*>(from[g] + half), best.from);
    }
    for (int n = 0; n < 16; ++n) cost[n] = next[n];
  }
  int n = 0;
  for (int m = 1; m < 16; ++m) {
    if (cost[m] < cost[n]) n = m;
  }
  for (int g = v.n_nibbles - 1; g >= 0; --g) {
    nibbles[g] = static_cast<uint8_t>(n);
    n = from[g][n];
  }
}

}  // namespace

const TrellisKernels kAvx2Trellis = {transform, viterbi};

}  // namespace headq
