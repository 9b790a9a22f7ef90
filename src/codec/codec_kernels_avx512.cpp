#include <immintrin.h>

#include "codec/codec_kernels.h"

namespace headq {
namespace {

// kStrips of 16 coordinates at once.
template <int kStrips>
void transform_strips(const float* columns, int n_in, int stride, const float* x, float* y) {
  __m512 sum[kStrips];
  for (__m512& s : sum) s = _mm512_setzero_ps();
  for (int i = 0; i < n_in; ++i, columns += stride) {
    const __m512 a = _mm512_set1_ps(x[i]);
    for (int j = 0; j < kStrips; ++j) {
      sum[j] = _mm512_add_ps(sum[j], _mm512_mul_ps(a, _mm512_loadu_ps(columns + 16 * j)));
    }
  }
  for (int j = 0; j < kStrips; ++j) _mm512_storeu_ps(y + 16 * j, sum[j]);
}

void transform(const float* columns, int n_in, int stride, const float* x, float* y) {
  int c = 0;
  for (; c + 64 <= stride; c += 64) transform_strips<4>(columns + c, n_in, stride, x, y + c);
  for (; c + 32 <= stride; c += 32) transform_strips<2>(columns + c, n_in, stride, x, y + c);
  if (c < stride) transform_strips<1>(columns + c, n_in, stride, x, y + c);
}

__m256i halves_of(__m512 x) { return _mm512_cvtps_ph(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }

void to_halves(const float* in, size_t n, uint16_t* out) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + i), halves_of(_mm512_loadu_ps(in + i)));
  }
  if (i == n) return;
  const __mmask16 rest = static_cast<__mmask16>((1u << (n - i)) - 1u);
  alignas(32) uint16_t last[16];
  _mm256_store_si256(reinterpret_cast<__m256i*>(last), halves_of(_mm512_maskz_loadu_ps(rest, in + i)));
  for (size_t j = 0; i < n; ++i, ++j) out[i] = last[j];
}

// Four chains of minima side by side, each over four values of m in turn; a later one wins only when
// it is strictly less, so of equals the smallest m stays.
struct Best {
  __m512 cost;
  __m512i from;
};

Best best_of(__m512 cost, const float* pairs, int first) {
  const auto candidate = [&](int m) {
    return _mm512_add_ps(_mm512_permutexvar_ps(_mm512_set1_epi32(m), cost),
                         _mm512_loadu_ps(pairs + m * 16));
  };
  Best best = {candidate(first), _mm512_set1_epi32(first)};
  for (int m = first + 1; m < first + 4; ++m) {
    const __m512 c = candidate(m);
    const __mmask16 less = _mm512_cmp_ps_mask(c, best.cost, _CMP_LT_OQ);
    best.cost = _mm512_mask_mov_ps(best.cost, less, c);
    best.from = _mm512_mask_mov_epi32(best.from, less, _mm512_set1_epi32(m));
  }
  return best;
}

Best better(const Best& a, const Best& b) {
  const __mmask16 less = _mm512_cmp_ps_mask(b.cost, a.cost, _CMP_LT_OQ);
  return {_mm512_mask_mov_ps(a.cost, less, b.cost), _mm512_mask_mov_epi32(a.from, less, b.from)};
}

void viterbi(const TrellisView& v, const float* y, uint8_t (*from)[16], float* last) {
  __m512 cost = _mm512_setzero_ps();
  for (int g = 0; g < v.n_nibbles; ++g) {
    Best best = {_mm512_setzero_ps(), _mm512_setzero_si512()};
    if (g > 0) {
      const float* pairs = v.pairs + g * 256;
      best = better(better(best_of(cost, pairs, 0), best_of(cost, pairs, 4)),
                    better(best_of(cost, pairs, 8), best_of(cost, pairs, 12)));
    }
    _mm_storeu_si128(reinterpret_cast<__m128i*>(from[g]), _mm512_cvtepi32_epi8(best.from));
    cost = _mm512_add_ps(best.cost, _mm512_loadu_ps(v.norms + g * 16));
    for (int i = v.term_begin[g]; i < v.term_begin[g + 1]; ++i) {
      const __m512 twice = _mm512_set1_ps(-2.0f * y[v.coords[i]]);
      cost = _mm512_add_ps(cost, _mm512_mul_ps(twice, _mm512_loadu_ps(v.table + i * 16)));
    }
  }
  _mm512_storeu_ps(last, cost);
}

void add_lookups(const uint8_t* codes, const float* table, float* out) {
  const __m512 entries = _mm512_loadu_ps(table);
  for (int t = 0; t < 32; t += 16) {
    const __m512i bytes =
        _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(codes + t)));
    const __m512 low = _mm512_permutexvar_ps(bytes, entries);  // by the low four bits
    const __m512 high = _mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), entries);
    _mm512_storeu_ps(out + t, _mm512_add_ps(_mm512_loadu_ps(out + t), low));
    _mm512_storeu_ps(out + t + 32, _mm512_add_ps(_mm512_loadu_ps(out + t + 32), high));
  }
}

}  // namespace

const CodecKernels kAvx512CodecKernels = {transform, to_halves, viterbi, add_lookups};

}  // namespace headq
