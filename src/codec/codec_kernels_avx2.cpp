#include <immintrin.h>

#include "codec/codec_kernels.h"

namespace headq {
namespace {

// kStrips of 16 coordinates at once.
template <int kStrips>
void transform_strips(const float* columns, int n_in, int stride, const float* x, float* y) {
  __m256 sum[2 * kStrips];
  for (__m256& s : sum) s = _mm256_setzero_ps();
  for (int i = 0; i < n_in; ++i, columns += stride) {
    const __m256 a = _mm256_set1_ps(x[i]);
    for (int j = 0; j < 2 * kStrips; ++j) {
      sum[j] = _mm256_add_ps(sum[j], _mm256_mul_ps(a, _mm256_loadu_ps(columns + 8 * j)));
    }
  }
  for (int j = 0; j < 2 * kStrips; ++j) _mm256_storeu_ps(y + 8 * j, sum[j]);
}

void transform(const float* columns, int n_in, int stride, const float* x, float* y) {
  int c = 0;
  for (; c + 64 <= stride; c += 64) transform_strips<4>(columns + c, n_in, stride, x, y + c);
  for (; c + 32 <= stride; c += 32) transform_strips<2>(columns + c, n_in, stride, x, y + c);
  if (c < stride) transform_strips<1>(columns + c, n_in, stride, x, y + c);
}

void to_halves(const float* in, size_t n, uint16_t* out) {
  constexpr int kRounding = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC;
  size_t i = 0;
  for (; i + 8 <= n; i += 8) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(out + i), _mm256_cvtps_ph(_mm256_loadu_ps(in + i), kRounding));
  }
  for (; i < n; ++i) out[i] = _cvtss_sh(in[i], kRounding);
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

// 16 integers below 16 as bytes.
void store_bytes(uint8_t* out, __m256i lo, __m256i hi) {
  const __m128i a = _mm_packs_epi32(_mm256_castsi256_si128(lo), _mm256_extracti128_si256(lo, 1));
  const __m128i b = _mm_packs_epi32(_mm256_castsi256_si128(hi), _mm256_extracti128_si256(hi, 1));
  _mm_storeu_si128(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(a, b));
}

void viterbi(const TrellisView& v, const float* y, uint8_t (*from)[16], float* cost) {
  for (int n = 0; n < 16; ++n) cost[n] = 0.0f;
  for (int g = 0; g < v.n_nibbles; ++g) {
    float next[16];
    __m256i best_from[2];
    for (int half = 0; half < 2; ++half) {
      const int n = 8 * half;
      Best best = {_mm256_setzero_ps(), _mm256_setzero_si256()};
      if (g > 0) best = best_of(cost, v.pairs + g * 256 + n);
      __m256 sum = _mm256_add_ps(best.cost, _mm256_loadu_ps(v.norms + g * 16 + n));
      for (int i = v.term_begin[g]; i < v.term_begin[g + 1]; ++i) {
        const __m256 twice = _mm256_set1_ps(-2.0f * y[v.coords[i]]);
        sum = _mm256_add_ps(sum, _mm256_mul_ps(twice, _mm256_loadu_ps(v.table + i * 16 + n)));
      }
      _mm256_storeu_ps(next + n, sum);
      best_from[half] = best.from;
    }
    store_bytes(from[g], best_from[0], best_from[1]);
    for (int n = 0; n < 16; ++n) cost[n] = next[n];
  }
}

// Eight entries of a table of 16 by the low four bits of each index.
__m256 look_up(__m256 first, __m256 second, __m256i index) {
  const __m256 a = _mm256_permutevar8x32_ps(first, index);
  const __m256 b = _mm256_permutevar8x32_ps(second, index);
  return _mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_slli_epi32(index, 28)));
}

void add_lookups(const uint8_t* codes, const float* table, float* out) {
  const __m256 first = _mm256_loadu_ps(table), second = _mm256_loadu_ps(table + 8);
  for (int t = 0; t < 32; t += 8) {
    const __m256i bytes =
        _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(codes + t)));
    const __m256 low = look_up(first, second, bytes);
    const __m256 high = look_up(first, second, _mm256_srli_epi32(bytes, 4));
    _mm256_storeu_ps(out + t, _mm256_add_ps(_mm256_loadu_ps(out + t), low));
    _mm256_storeu_ps(out + t + 32, _mm256_add_ps(_mm256_loadu_ps(out + t + 32), high));
  }
}

}  // namespace

const CodecKernels kAvx2CodecKernels = {transform, to_halves, viterbi, add_lookups};

}  // namespace headq
