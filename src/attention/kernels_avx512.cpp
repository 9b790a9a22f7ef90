#include <immintrin.h>

#include <cstring>

#include "attention/kernels.h"

namespace headq {
namespace {

__m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }

// Lanes added as a binary tree: 8 + 8, 4 + 4, 2 + 2, 1 + 1.
float lane_sum(__m512 s) {
  const __m256 eight = _mm256_add_ps(_mm512_castps512_ps256(s), _mm512_extractf32x8_ps(s, 1));
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

__m512 load_halves(const uint16_t* p) { return _mm512_cvtph_ps(load256(p)); }

void halves_to_floats(const uint16_t* in, size_t n, float* out) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) _mm512_storeu_ps(out + i, load_halves(in + i));
  if (i == n) return;
  const __mmask16 rest = static_cast<__mmask16>((1u << (n - i)) - 1u);
  _mm512_mask_storeu_ps(out + i, rest, _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(rest, in + i)));
}

uint64_t visible_bits(const uint16_t* mask, int n) {
  const __m512i drop = _mm512_set1_epi16(static_cast<int16_t>(0xfc00));
  uint64_t bits = 0;
  for (int t = 0; t < n; t += 32) {
    const __mmask32 live = n - t >= 32 ? ~__mmask32{0} : (__mmask32{1} << (n - t)) - 1u;
    const __mmask32 seen =
        _mm512_mask_cmpneq_epi16_mask(live, _mm512_maskz_loadu_epi16(live, mask + t), drop);
    bits |= static_cast<uint64_t>(seen) << t;
  }
  return bits;
}

float make_tables(const int* term_begin, const float* patterns, const float* c, int group_begin,
                  int group_end, float* tables) {
  __m512 largest = _mm512_setzero_ps();
  for (int g = group_begin; g < group_end; ++g) {
    __m512 table = _mm512_setzero_ps();
    for (int i = term_begin[g]; i < term_begin[g + 1]; ++i) {
      table = _mm512_add_ps(
          table, _mm512_mul_ps(_mm512_set1_ps(c[i]), _mm512_loadu_ps(patterns + i * 16)));
    }
    _mm512_storeu_ps(tables + (g - group_begin) * 16, table);
    largest = _mm512_max_ps(_mm512_abs_ps(table), largest);
  }
  return _mm512_reduce_max_ps(largest);
}

void quantise_tables(const float* tables, int n_groups, float inv_unit, uint8_t* lo, uint8_t* hi) {
  const __m512 inv = _mm512_set1_ps(inv_unit);
  const __m512i bias = _mm512_set1_epi32(32768);
  for (int g = 0; g < n_groups; ++g) {
    const __m512i u = _mm512_add_epi32(
        _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_loadu_ps(tables + g * 16), inv)), bias);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(lo + g * 16), _mm512_cvtepi32_epi8(u));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(hi + g * 16),
                     _mm512_cvtepi32_epi8(_mm512_srli_epi32(u, 8)));
  }
}

// Sums of bytes by token as 16-bit numbers: `all` adds even + 256 * odd, `odd` the odd ones.
struct ByteSums {
  __m512i all = _mm512_setzero_si512();
  __m512i odd = _mm512_setzero_si512();

  void add(__m512i bytes) {
    all = _mm512_add_epi16(all, bytes);
    odd = _mm512_add_epi16(odd, _mm512_srli_epi16(bytes, 8));
  }
};

// Two groups side by side in a register: adds their halves to 32 tokens' sums of even and odd bytes.
void add_halves(__m512i v, __m512i* sum) {
  *sum = _mm512_add_epi32(*sum, _mm512_cvtepu16_epi32(_mm512_castsi512_si256(v)));
  *sum = _mm512_add_epi32(*sum, _mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(v, 1)));
}

// sums[t] += low + 256 * high for 32 tokens.
void add_sums(const ByteSums& low, const ByteSums& high, int32_t* sums) {
  __m512i even = _mm512_setzero_si512(), odd = even, even_high = even, odd_high = even;
  add_halves(_mm512_sub_epi16(low.all, _mm512_slli_epi16(low.odd, 8)), &even);
  add_halves(low.odd, &odd);
  add_halves(_mm512_sub_epi16(high.all, _mm512_slli_epi16(high.odd, 8)), &even_high);
  add_halves(high.odd, &odd_high);
  even = _mm512_add_epi32(even, _mm512_slli_epi32(even_high, 8));
  odd = _mm512_add_epi32(odd, _mm512_slli_epi32(odd_high, 8));
  const __m512i first = _mm512_setr_epi32(0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23);
  const __m512i second =
      _mm512_setr_epi32(8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31);
  const __m512i a = _mm512_permutex2var_epi32(even, first, odd);
  const __m512i b = _mm512_permutex2var_epi32(even, second, odd);
  _mm512_storeu_si512(sums, _mm512_add_epi32(_mm512_loadu_si512(sums), a));
  _mm512_storeu_si512(sums + 16, _mm512_add_epi32(_mm512_loadu_si512(sums + 16), b));
}

void scan(const uint8_t* codes, int n_groups, const uint8_t* lo, const uint8_t* hi, int32_t* sums) {
  constexpr int kMaxGroups = 512;  // two groups a register: 256 * 255 fits 16 bits
  const __m512i low_nibble = _mm512_set1_epi8(15);
  const __m512i spread = _mm512_setr_epi64(0, 1, 0, 1, 2, 3, 2, 3);  // each table in two lanes
  for (int t = 0; t < 64; ++t) sums[t] = -32768 * n_groups;
  for (int begin = 0; begin < n_groups; begin += kMaxGroups) {
    const int end = n_groups - begin < kMaxGroups ? n_groups : begin + kMaxGroups;
    ByteSums low0, low1, high0, high1;
    for (int g = begin; g < end; g += 2) {
      // Of a lone last group the second half is read as zeros: table 0 adds nothing.
      const bool pair = g + 1 < end;
      const __m512i c = pair ? _mm512_loadu_si512(codes + g * 32)
                             : _mm512_zextsi256_si512(load256(codes + g * 32));
      const __m256i tables_lo =
          pair ? load256(lo + g * 16)
               : _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(lo + g * 16)));
      const __m256i tables_hi =
          pair ? load256(hi + g * 16)
               : _mm256_zextsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(hi + g * 16)));
      const __m512i tl = _mm512_permutexvar_epi64(spread, _mm512_castsi256_si512(tables_lo));
      const __m512i th = _mm512_permutexvar_epi64(spread, _mm512_castsi256_si512(tables_hi));
      const __m512i n0 = _mm512_and_si512(c, low_nibble);
      const __m512i n1 = _mm512_and_si512(_mm512_srli_epi16(c, 4), low_nibble);
      low0.add(_mm512_shuffle_epi8(tl, n0));
      low1.add(_mm512_shuffle_epi8(tl, n1));
      high0.add(_mm512_shuffle_epi8(th, n0));
      high1.add(_mm512_shuffle_epi8(th, n1));
    }
    add_sums(low0, high0, sums);
    add_sums(low1, high1, sums + 32);
  }
}

float quantise_weights(const float* p, const float* scale, int16_t* w) {
  __m512 x[4];
  __m512 largest = _mm512_setzero_ps();
  for (int i = 0; i < 4; ++i) {
    x[i] = _mm512_loadu_ps(p + i * 16);
    if (scale != nullptr) x[i] = _mm512_mul_ps(x[i], _mm512_loadu_ps(scale + i * 16));
    largest = _mm512_max_ps(x[i], largest);
  }
  const float max = _mm512_reduce_max_ps(largest);
  const __m512 inv = _mm512_set1_ps(max > 0.0f ? 32767.0f / max : 0.0f);
  for (int i = 0; i < 4; ++i) {
    const __m512i r = _mm512_cvtps_epi32(_mm512_mul_ps(x[i], inv));
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(w + i * 16), _mm512_cvtsepi32_epi16(r));
  }
  return max / 32767.0f;
}

void value_dots(const uint8_t* codes, const int* group, const int8_t* tables, int n_terms,
                const int16_t* w, int32_t* out) {
  const __m256i low_nibble = _mm256_set1_epi8(15);
  const __m512i w0 = _mm512_loadu_si512(w);
  const __m512i w1 = _mm512_loadu_si512(w + 32);
  for (int i = 0; i < n_terms; ++i) {
    const __m256i c = load256(codes + group[i] * 32);
    const __m256i table = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(tables + i * 16)));
    const __m256i a = _mm256_shuffle_epi8(table, _mm256_and_si256(c, low_nibble));
    const __m256i b =
        _mm256_shuffle_epi8(table, _mm256_and_si256(_mm256_srli_epi16(c, 4), low_nibble));
    const __m512i s = _mm512_add_epi32(_mm512_madd_epi16(_mm512_cvtepi8_epi16(a), w0),
                                       _mm512_madd_epi16(_mm512_cvtepi8_epi16(b), w1));
    out[i] = _mm512_reduce_add_epi32(s);
  }
}

float dot64(const float* a, const float* b) {
  __m512 s = _mm512_setzero_ps();
  for (int i = 0; i < 64; i += 16) {
    s = _mm512_add_ps(s, _mm512_mul_ps(_mm512_loadu_ps(a + i), _mm512_loadu_ps(b + i)));
  }
  return lane_sum(s);
}

void dense_scores(const uint16_t* rows, int stride, int n, const float* q, float* out) {
  for (int t = 0; t < n; ++t) {
    const uint16_t* row = rows + static_cast<ptrdiff_t>(t) * stride;
    __m512 s = _mm512_setzero_ps();
    for (int c = 0; c < stride; c += 16) {
      s = _mm512_add_ps(s, _mm512_mul_ps(_mm512_loadu_ps(q + c), load_halves(row + c)));
    }
    out[t] = lane_sum(s);
  }
}

void dense_accumulate(const uint16_t* rows, int stride, int n, const float* w, float* acc) {
  for (int c = 0; c < stride; c += 16) {
    __m512 a = _mm512_loadu_ps(acc + c);
    for (int t = 0; t < n; ++t) {
      if (w[t] == 0.0f) continue;
      const uint16_t* row = rows + static_cast<ptrdiff_t>(t) * stride + c;
      a = _mm512_add_ps(a, _mm512_mul_ps(_mm512_set1_ps(w[t]), load_halves(row)));
    }
    _mm512_storeu_ps(acc + c, a);
  }
}

float max_score(const float* scores, int n) {
  __m512 largest = _mm512_set1_ps(-__builtin_inff());
  for (int i = 0; i < n; i += 16) largest = _mm512_max_ps(_mm512_loadu_ps(scores + i), largest);
  return _mm512_reduce_max_ps(largest);
}

__m512 exp_of(__m512 x) {
  const __mmask16 live = _mm512_cmp_ps_mask(x, _mm512_set1_ps(kExpLowest), _CMP_NLT_UQ);
  const __m512 n = _mm512_roundscale_ps(_mm512_mul_ps(x, _mm512_set1_ps(kLog2e)),
                                        _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m512 r = _mm512_sub_ps(x, _mm512_mul_ps(n, _mm512_set1_ps(kLn2Hi)));
  r = _mm512_sub_ps(r, _mm512_mul_ps(n, _mm512_set1_ps(kLn2Lo)));
  __m512 y = _mm512_set1_ps(kExpTaylor[0]);
  for (int i = 1; i < 5; ++i) {
    y = _mm512_add_ps(_mm512_mul_ps(y, r), _mm512_set1_ps(kExpTaylor[i]));
  }
  y = _mm512_add_ps(_mm512_mul_ps(y, r), _mm512_set1_ps(1.0f));
  y = _mm512_add_ps(_mm512_mul_ps(y, r), _mm512_set1_ps(1.0f));
  const __m512i exponent =
      _mm512_slli_epi32(_mm512_add_epi32(_mm512_cvtps_epi32(n), _mm512_set1_epi32(127)), 23);
  return _mm512_maskz_mul_ps(live, y, _mm512_castsi512_ps(exponent));
}

float exp_weights(const float* scores, int n, float max, float* p) {
  const __m512 m = _mm512_set1_ps(max);
  __m512 s = _mm512_setzero_ps();
  for (int i = 0; i < n; i += 16) {
    const __m512 e = exp_of(_mm512_sub_ps(_mm512_loadu_ps(scores + i), m));
    _mm512_storeu_ps(p + i, e);
    s = _mm512_add_ps(s, e);
  }
  return lane_sum(s);
}

}  // namespace

const Kernels kAvx512Kernels = {
    .name = "avx512",
    .halves_to_floats = halves_to_floats,
    .visible_bits = visible_bits,
    .make_tables = make_tables,
    .quantise_tables = quantise_tables,
    .scan = scan,
    .quantise_weights = quantise_weights,
    .value_dots = value_dots,
    .dot64 = dot64,
    .dense_scores = dense_scores,
    .dense_accumulate = dense_accumulate,
    .max_score = max_score,
    .exp_weights = exp_weights,
};

}  // namespace headq
