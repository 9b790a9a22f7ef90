#include <immintrin.h>

#include <cstring>

#include "attention/kernels.h"

namespace headq {
namespace {

__m256i load256(const void* p) { return _mm256_loadu_si256(static_cast<const __m256i*>(p)); }
void store256(void* p, __m256i v) { _mm256_storeu_si256(static_cast<__m256i*>(p), v); }

// A 16-byte table in both lanes, for 32 lookups by vpshufb.
__m256i table256(const void* p) {
  return _mm256_broadcastsi128_si256(_mm_loadu_si128(static_cast<const __m128i*>(p)));
}

// Sixteen lanes as two registers; see kernels.h for the order of the sum.
struct Lanes {
  __m256 a = _mm256_setzero_ps();  // lanes 0..7
  __m256 b = _mm256_setzero_ps();  // lanes 8..15
};

float lane_sum(Lanes s) {
  const __m256 eight = _mm256_add_ps(s.a, s.b);
  const __m128 four = _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
  const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

float max_of(__m256 v) {
  __m128 m = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
  m = _mm_max_ps(m, _mm_movehl_ps(m, m));
  m = _mm_max_ss(m, _mm_movehdup_ps(m));
  return _mm_cvtss_f32(m);
}

__m256 load_halves(const uint16_t* p) {
  return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
}

void halves_to_floats(const uint16_t* in, size_t n, float* out) {
  size_t i = 0;
  for (; i + 8 <= n; i += 8) _mm256_storeu_ps(out + i, load_halves(in + i));
  if (i == n) return;
  uint16_t rest[8] = {};
  std::memcpy(rest, in + i, (n - i) * sizeof(uint16_t));
  float tail[8];
  _mm256_storeu_ps(tail, load_halves(rest));
  std::memcpy(out + i, tail, (n - i) * sizeof(float));
}

uint64_t visible_bits(const uint16_t* mask, int n, bool* biased) {
  const __m256i drop = _mm256_set1_epi16(static_cast<int16_t>(0xfc00));
  const __m256i magnitude = _mm256_set1_epi16(0x7fff);
  uint64_t bits = 0;
  __m256i any = _mm256_setzero_si256();
  int t = 0;
  for (; t + 32 <= n; t += 32) {
    const __m256i x = load256(mask + t), y = load256(mask + t + 16);
    const __m256i a = _mm256_cmpeq_epi16(x, drop), b = _mm256_cmpeq_epi16(y, drop);
    any = _mm256_or_si256(any, _mm256_andnot_si256(a, _mm256_and_si256(x, magnitude)));
    any = _mm256_or_si256(any, _mm256_andnot_si256(b, _mm256_and_si256(y, magnitude)));
    const __m256i packed = _mm256_permute4x64_epi64(_mm256_packs_epi16(a, b), 0xd8);
    bits |= static_cast<uint64_t>(~static_cast<uint32_t>(_mm256_movemask_epi8(packed))) << t;
  }
  if (_mm256_testz_si256(any, any) == 0) *biased = true;
  for (; t < n; ++t) {
    if (mask[t] == 0xfc00u) continue;
    bits |= uint64_t{1} << t;
    if ((mask[t] & 0x7fffu) != 0) *biased = true;
  }
  return bits;
}

void make_tables(const int* term_begin, const float* patterns, const float* c, int group_begin,
                 int group_end, float* tables, float* largest) {
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  for (int g = group_begin; g < group_end; ++g, tables += 16) {
    __m256 a = _mm256_setzero_ps();
    __m256 b = _mm256_setzero_ps();
    for (int i = term_begin[g]; i < term_begin[g + 1]; ++i) {
      const __m256 ci = _mm256_set1_ps(c[i]);
      a = _mm256_add_ps(a, _mm256_mul_ps(ci, _mm256_loadu_ps(patterns + i * 16)));
      b = _mm256_add_ps(b, _mm256_mul_ps(ci, _mm256_loadu_ps(patterns + i * 16 + 8)));
    }
    _mm256_storeu_ps(tables, a);
    _mm256_storeu_ps(tables + 8, b);
    *largest++ = max_of(_mm256_max_ps(_mm256_and_ps(a, magnitude), _mm256_and_ps(b, magnitude)));
  }
}

// The 16 integers of a and b, which fit bytes.
void store_bytes(int8_t* to, __m256i a, __m256i b) {
  const __m256i words = _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8);
  const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(words, words), 0xd8);
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_castsi256_si128(bytes));
}

void quantise_tables(const float* tables, int n_groups, int n_wide, const float* inv_unit, int8_t* low,
                     int8_t* high) {
  const __m256 inv_base = _mm256_set1_ps(1.0f / kHighFactor);
  const __m256i base = _mm256_set1_epi32(kHighFactor);
  for (int g = 0; g < n_groups; ++g) {
    __m256i l[2], h[2];
    for (int i = 0; i < 2; ++i) {
      const __m256 x = _mm256_mul_ps(_mm256_loadu_ps(tables + g * 16 + i * 8), _mm256_set1_ps(inv_unit[g]));
      const __m256i t = _mm256_cvtps_epi32(x);
      h[i] = _mm256_setzero_si256();
      if (g < n_wide) h[i] = _mm256_cvtps_epi32(_mm256_mul_ps(_mm256_cvtepi32_ps(t), inv_base));
      l[i] = _mm256_sub_epi32(t, _mm256_mullo_epi32(h[i], base));
    }
    store_bytes(low + g * 16, l[0], l[1]);
    store_bytes(high + g * 16, h[0], h[1]);
  }
}

// Sums of 32 tokens in 16 bits: tokens 0-7 and 16-23, then 8-15 and 24-31.
struct WordSums {
  __m256i v[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};

  // Adds lookups of two groups times the two factors that are in every word.
  void add(__m256i table0, __m256i table1, __m256i n0, __m256i n1, __m256i factors) {
    const __m256i a = _mm256_shuffle_epi8(table0, n0), b = _mm256_shuffle_epi8(table1, n1);
    v[0] = _mm256_add_epi16(v[0], _mm256_maddubs_epi16(factors, _mm256_unpacklo_epi8(a, b)));
    v[1] = _mm256_add_epi16(v[1], _mm256_maddubs_epi16(factors, _mm256_unpackhi_epi8(a, b)));
  }
};

// sums[t] += low + factor * high for 32 tokens.
void join_sums(const WordSums& low, const WordSums& high, int factor, int32_t* sums) {
  const __m256i base = _mm256_set1_epi32(factor);
  const auto widened = [](__m256i words, int half) {
    return _mm256_cvtepi16_epi32(half == 0 ? _mm256_castsi256_si128(words) : _mm256_extracti128_si256(words, 1));
  };
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < 2; ++i) {
      int32_t* to = sums + half * 16 + i * 8;
      const __m256i sum = _mm256_add_epi32(widened(low.v[i], half),
                                           _mm256_mullo_epi32(widened(high.v[i], half), base));
      store256(to, _mm256_add_epi32(load256(to), sum));
    }
  }
}

// The 32 tokens of low (half 0) or high nibbles.
template <int kQueries>
void scan_half(const uint8_t* codes, int half, int n_groups, int n_wide, const int8_t* low,
               const int8_t* high, const uint8_t* factor, size_t stride, int32_t* sums) {
  constexpr int kMostGroups = 32;  // see kMostFactor
  const __m256i low_nibble = _mm256_set1_epi8(15), ones = _mm256_set1_epi8(1);
  const auto nibbles_of = [&](int g) {
    const __m256i bytes = load256(codes + g * 32);
    return _mm256_and_si256(half == 0 ? bytes : _mm256_srli_epi16(bytes, 4), low_nibble);
  };
  for (int begin = 0; begin < n_groups; begin += kMostGroups) {
    const int end = n_groups - begin < kMostGroups ? n_groups : begin + kMostGroups;
    WordSums low_sum[kQueries], high_sum[kQueries];
    const auto add_pair = [&]<bool kWide, bool kBoth>(int g) {
      if (half == 0) __builtin_prefetch(codes + g * 32 + kFetchAhead);
      const __m256i n0 = nibbles_of(g), n1 = kBoth ? nibbles_of(g + 1) : n0;
      for (size_t q = 0; q < kQueries; ++q) {
        const size_t at = q * stride + static_cast<size_t>(g);
        const int factors = factor[at] | (kBoth ? factor[at + 1] << 8 : 0);
        const auto tables = [&](const int8_t* of, WordSums& sum, __m256i by) {
          const __m256i second = kBoth ? table256(of + (at + 1) * 16) : _mm256_setzero_si256();
          sum.add(table256(of + at * 16), second, n0, n1, by);
        };
        tables(low, low_sum[q], _mm256_set1_epi16(static_cast<int16_t>(factors)));
        if (kWide) tables(high, high_sum[q], ones);
      }
    };
    int g = begin;
    for (; g + 1 < end && g < n_wide; g += 2) add_pair.template operator()<true, true>(g);
    for (; g + 1 < end; g += 2) add_pair.template operator()<false, true>(g);
    if (g < end) add_pair.template operator()<true, false>(g);
    for (int q = 0; q < kQueries; ++q) join_sums(low_sum[q], high_sum[q], kHighFactor, sums + q * 64 + half * 32);
  }
}

void scan(const uint8_t* codes, int n_groups, int n_wide, const int8_t* low, const int8_t* high,
          const uint8_t* factor, size_t stride, int n, int32_t* sums) {
  std::memset(sums, 0, static_cast<size_t>(n) * 64 * sizeof(int32_t));
  const auto queries = [&]<int kQueries>() {
    for (int half = 0; half < 2; ++half) {
      scan_half<kQueries>(codes, half, n_groups, n_wide, low, high, factor, stride, sums);
    }
    low += kQueries * stride * 16;
    high += kQueries * stride * 16;
    factor += kQueries * stride;
    sums += kQueries * 64;
    n -= kQueries;
  };
  while (n >= 3) queries.template operator()<3>();
  while (n > 0) queries.template operator()<1>();
}

float quantise_products(const float* halves, const float* factors, int n, int8_t* low, int8_t* high) {
  const auto product = [&](int i) { return _mm256_mul_ps(_mm256_loadu_ps(halves + i), _mm256_loadu_ps(factors + i)); };
  const __m256 magnitude = _mm256_castsi256_ps(_mm256_set1_epi32(0x7fffffff));
  __m256 most = _mm256_setzero_ps();
  for (int i = 0; i < n; i += 8) most = _mm256_max_ps(_mm256_and_ps(product(i), magnitude), most);
  const float largest = max_of(most);
  const __m256 inv_unit = _mm256_set1_ps(largest > 0.0f ? static_cast<float>(kProductTop) / largest : 0.0f);
  for (int i = 0; i < n; i += 8) {
    const __m256i c = _mm256_cvtps_epi32(_mm256_mul_ps(product(i), inv_unit));
    const __m256i h = _mm256_srai_epi32(_mm256_add_epi32(c, _mm256_set1_epi32(128)), 8);
    const __m256i l = _mm256_sub_epi32(c, _mm256_slli_epi32(h, 8));
    const __m256i words = _mm256_packs_epi32(l, h);  // of each lane: 4 low, 4 high
    const __m256i bytes = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(words, words),
                                                      _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(low + i), _mm256_castsi256_si128(bytes));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(high + i), _mm_unpackhi_epi64(_mm256_castsi256_si128(bytes), _mm256_castsi256_si128(bytes)));
  }
  return largest / static_cast<float>(kProductTop);
}

// The 32 tokens of low (half 0) or high nibbles.
template <int kQueries>
void scan_products_half(const uint8_t* codes, int half, int n_groups, const int8_t* low, const int8_t* high,
                        size_t stride, int32_t* sums) {
  constexpr int kMostGroups = 40;  // of 2 * 3 * 128 each, within 16 bits
  const __m256i three = _mm256_set1_epi8(3);
  for (int begin = 0; begin < n_groups; begin += kMostGroups) {
    const int end = n_groups - begin < kMostGroups ? n_groups : begin + kMostGroups;
    WordSums l[kQueries], h[kQueries];
    for (int g = begin; g < end; g += 2) {
      const bool both = g + 1 < end;
      if (half == 0) __builtin_prefetch(codes + g * 32 + kFetchAhead);
      const __m256i c0 = load256(codes + g * 32);
      const __m256i c1 = both ? load256(codes + g * 32 + 32) : _mm256_setzero_si256();
      for (int i = 0; i < 2; ++i) {
        __m256i n = i == 0 ? _mm256_unpacklo_epi8(c0, c1) : _mm256_unpackhi_epi8(c0, c1);
        if (half == 1) n = _mm256_srli_epi16(n, 4);
        const __m256i x = _mm256_and_si256(n, three), y = _mm256_and_si256(_mm256_srli_epi16(n, 2), three);
        for (size_t q = 0; q < kQueries; ++q) {
          const size_t at = q * stride + static_cast<size_t>(g / 4 * 8 + g % 4);
          const auto dots = [&](__m256i sum, const int8_t* of) {
            int16_t a, b;
            std::memcpy(&a, of + at, sizeof(a));
            std::memcpy(&b, of + at + 4, sizeof(b));
            sum = _mm256_add_epi16(sum, _mm256_maddubs_epi16(x, _mm256_set1_epi16(a)));
            return _mm256_add_epi16(sum, _mm256_maddubs_epi16(y, _mm256_set1_epi16(b)));
          };
          l[q].v[i] = dots(l[q].v[i], low);
          h[q].v[i] = dots(h[q].v[i], high);
        }
      }
    }
    for (int q = 0; q < kQueries; ++q) join_sums(l[q], h[q], 256, sums + q * 64 + half * 32);
  }
}

void scan_products(const uint8_t* codes, int n_groups, const int8_t* low, const int8_t* high, size_t stride,
                   int n, int32_t* sums) {
  std::memset(sums, 0, static_cast<size_t>(n) * 64 * sizeof(int32_t));
  const auto queries = [&]<int kQueries>() {
    for (int half = 0; half < 2; ++half) {
      scan_products_half<kQueries>(codes, half, n_groups, low, high, stride, sums);
    }
    low += kQueries * stride;
    high += kQueries * stride;
    sums += kQueries * 64;
    n -= kQueries;
  };
  while (n >= 2) queries.template operator()<2>();
  if (n == 1) queries.template operator()<1>();
}

void add_sums(const int32_t* sums, float unit, const float* scale, const float* zero, float z,
              float* out) {
  for (int t = 0; t < 64; t += 8) {
    __m256 x = _mm256_mul_ps(_mm256_set1_ps(unit), _mm256_cvtepi32_ps(load256(sums + t)));
    if (scale != nullptr) {
      x = _mm256_add_ps(_mm256_mul_ps(_mm256_loadu_ps(scale + t), x),
                        _mm256_mul_ps(_mm256_loadu_ps(zero + t), _mm256_set1_ps(z)));
    }
    _mm256_storeu_ps(out + t, _mm256_add_ps(_mm256_loadu_ps(out + t), x));
  }
}

// All bits of the lanes whose bit in `bits` is set.
__m256 lanes_of(uint64_t bits) {
  const __m256i bit = _mm256_setr_epi32(1, 2, 4, 8, 16, 32, 64, 128);
  const __m256i all = _mm256_set1_epi32(static_cast<int>(bits & 255));
  return _mm256_castsi256_ps(_mm256_cmpeq_epi32(_mm256_and_si256(all, bit), bit));
}

__m256 weights(const float* p, const float* scale, uint64_t mask, int t) {
  __m256 x = _mm256_loadu_ps(p + t);
  if (scale != nullptr) x = _mm256_mul_ps(x, _mm256_loadu_ps(scale + t));
  return _mm256_and_ps(x, lanes_of(mask >> t));
}

float max_weight(const float* p, const float* scale, uint64_t mask) {
  __m256 largest = _mm256_setzero_ps();
  for (int t = 0; t < 64; t += 8) largest = _mm256_max_ps(weights(p, scale, mask, t), largest);
  return max_of(largest);
}

void quantise_weights(const float* p, const float* scale, uint64_t mask, float inv_unit, uint8_t* w) {
  const __m256 inv = _mm256_set1_ps(inv_unit);
  for (int t = 0; t < 64; t += 16) {
    const __m256i a = _mm256_cvtps_epi32(_mm256_mul_ps(weights(p, scale, mask, t), inv));
    const __m256i b = _mm256_cvtps_epi32(_mm256_mul_ps(weights(p, scale, mask, t + 8), inv));
    store256(w + t * 2, _mm256_permute4x64_epi64(_mm256_packs_epi32(a, b), 0xd8));
  }
}

__m256i widened(__m256i bytes, int half) {
  return _mm256_cvtepi8_epi16(half == 0 ? _mm256_castsi256_si128(bytes)
                                        : _mm256_extracti128_si256(bytes, 1));
}

// Two sums and where their nibbles lie in a block. Sums of neighbouring coordinates mostly have the
// same groups.
struct SumPair {
  ptrdiff_t offset[2][2];  // [sum][table]
  const int8_t* tables[2];
};

// Two sums against up to three queries, all blocks at once; kTables: 1 where both have one table;
// kShared: the second sum has the groups of the first. Each lane holds at most 16 blocks of
// 8 * 32639 * 128.
template <int kQueries, int kTables, bool kShared>
void value_dots_of(const uint8_t* const* codes, int n_blocks, const SumPair& pair, const uint8_t* w,
                   int n_queries, float (&out)[2][3]) {
  const __m256i low_nibble = _mm256_set1_epi8(15);
  __m256i table[2][kTables], sum[2][kQueries];
  for (int i = 0; i < 2; ++i) {
    for (int j = 0; j < kTables; ++j) table[i][j] = table256(pair.tables[i] + j * 16);
    for (__m256i& s : sum[i]) s = _mm256_setzero_si256();
  }
  for (int b = 0; b < n_blocks; ++b, w += n_queries * kWeightBytes) {
    for (int half = 0; half < 2; ++half) {
      const auto nibbles_at = [&](ptrdiff_t offset) {
        const __m256i bytes = load256(codes[b] + offset);
        return _mm256_and_si256(half == 0 ? bytes : _mm256_srli_epi16(bytes, 4), low_nibble);
      };
      __m256i x[2];
      for (int j = 0; j < kTables; ++j) {
        __m256i n = nibbles_at(pair.offset[0][j]);
        for (int i = 0; i < 2; ++i) {
          if (i == 1 && !kShared) n = nibbles_at(pair.offset[1][j]);
          const __m256i term = _mm256_shuffle_epi8(table[i][j], n);
          x[i] = j == 0 ? term : _mm256_add_epi8(x[i], term);
        }
      }
      for (int i = 0; i < 2; ++i) {
        const __m256i even = widened(x[i], 0), odd = widened(x[i], 1);
        for (int q = 0; q < kQueries; ++q) {
          const uint8_t* weights = w + q * kWeightBytes + half * 64;
          sum[i][q] = _mm256_add_epi32(sum[i][q], _mm256_madd_epi16(even, load256(weights)));
          sum[i][q] = _mm256_add_epi32(sum[i][q], _mm256_madd_epi16(odd, load256(weights + 32)));
        }
      }
    }
  }
  for (int i = 0; i < 2; ++i) {
    for (int q = 0; q < kQueries; ++q) {
      const __m128i four = _mm_add_epi32(_mm256_castsi256_si128(sum[i][q]), _mm256_extracti128_si256(sum[i][q], 1));
      const __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
      out[i][q] = static_cast<float>(int64_t{_mm_extract_epi32(two, 0)} + _mm_extract_epi32(two, 1));
    }
  }
}

using ValueDots = decltype(&value_dots_of<1, 1, false>);

template <int kTables, bool kShared>
constexpr ValueDots kValueDots[3] = {value_dots_of<1, kTables, kShared>, value_dots_of<2, kTables, kShared>,
                                     value_dots_of<3, kTables, kShared>};

void value_dots(const uint8_t* const* codes, int n_blocks, const int* group, const int8_t* tables,
                int n_sums, const uint8_t* w, int n_queries, float* out) {
  for (int i = 0; i < n_sums; i += 2) {
    const int sums[2] = {i, i + 1 < n_sums ? i + 1 : i};
    SumPair pair;
    for (int j = 0; j < 2; ++j) {
      const int* at = group + 2 * sums[j];
      pair.offset[j][0] = at[0] * 32;
      pair.offset[j][1] = (at[1] < 0 ? at[0] : at[1]) * 32;
      pair.tables[j] = tables + sums[j] * 32;
    }
    const bool single = group[2 * sums[0] + 1] < 0 && group[2 * sums[1] + 1] < 0;
    const bool shared = pair.offset[0][0] == pair.offset[1][0] && pair.offset[0][1] == pair.offset[1][1];
    const ValueDots* dots_of = single ? (shared ? kValueDots<1, true> : kValueDots<1, false>)
                                      : (shared ? kValueDots<2, true> : kValueDots<2, false>);
    for (int first = 0; first < n_queries; first += 3) {
      const int n = n_queries - first < 3 ? n_queries - first : 3;
      float dots[2][3];
      dots_of[n - 1](codes, n_blocks, pair, w + first * kWeightBytes, n_queries, dots);
      for (int q = 0; q < n; ++q) {
        float* to = out + (first + q) * n_sums;
        to[sums[1]] = dots[1][q];
        to[sums[0]] = dots[0][q];
      }
    }
  }
}

float dot(const float* a, const float* b, int n) {
  Lanes s;
  for (int i = 0; i < n; i += 16) {
    s.a = _mm256_add_ps(s.a, _mm256_mul_ps(_mm256_loadu_ps(a + i), _mm256_loadu_ps(b + i)));
    s.b = _mm256_add_ps(s.b, _mm256_mul_ps(_mm256_loadu_ps(a + i + 8), _mm256_loadu_ps(b + i + 8)));
  }
  return lane_sum(s);
}

void dense_scores(const uint16_t* rows, int stride, int n, const float* q, float* out) {
  for (int t = 0; t < n; ++t) {
    const uint16_t* row = rows + static_cast<ptrdiff_t>(t) * stride;
    Lanes s;
    for (int c = 0; c < stride; c += 16) {
      s.a = _mm256_add_ps(s.a, _mm256_mul_ps(_mm256_loadu_ps(q + c), load_halves(row + c)));
      s.b = _mm256_add_ps(s.b, _mm256_mul_ps(_mm256_loadu_ps(q + c + 8), load_halves(row + c + 8)));
    }
    out[t] = lane_sum(s);
  }
}

void dense_accumulate(const uint16_t* rows, int stride, int n, const float* w, float* acc) {
  for (int c = 0; c < stride; c += 16) {
    __m256 a = _mm256_loadu_ps(acc + c);
    __m256 b = _mm256_loadu_ps(acc + c + 8);
    for (int t = 0; t < n; ++t) {
      if (w[t] == 0.0f) continue;
      const uint16_t* row = rows + static_cast<ptrdiff_t>(t) * stride + c;
      const __m256 wt = _mm256_set1_ps(w[t]);
      a = _mm256_add_ps(a, _mm256_mul_ps(wt, load_halves(row)));
      b = _mm256_add_ps(b, _mm256_mul_ps(wt, load_halves(row + 8)));
    }
    _mm256_storeu_ps(acc + c, a);
    _mm256_storeu_ps(acc + c + 8, b);
  }
}

float max_score(const float* scores, int n) {
  __m256 largest = _mm256_set1_ps(-__builtin_inff());
  for (int i = 0; i < n; i += 8) largest = _mm256_max_ps(_mm256_loadu_ps(scores + i), largest);
  return max_of(largest);
}

__m256 exp_of(__m256 x) {
  const __m256 low = _mm256_cmp_ps(x, _mm256_set1_ps(kExpLowest), _CMP_LT_OQ);
  const __m256 n = _mm256_round_ps(_mm256_mul_ps(x, _mm256_set1_ps(kLog2e)),
                                   _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  __m256 r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2Hi), x);
  r = _mm256_fnmadd_ps(n, _mm256_set1_ps(kLn2Lo), r);
  __m256 y = _mm256_set1_ps(kExpTaylor[0]);
  for (int i = 1; i < 5; ++i) y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(kExpTaylor[i]));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.0f));
  y = _mm256_fmadd_ps(y, r, _mm256_set1_ps(1.0f));
  const __m256i exponent =
      _mm256_slli_epi32(_mm256_add_epi32(_mm256_cvtps_epi32(n), _mm256_set1_epi32(127)), 23);
  return _mm256_andnot_ps(low, _mm256_mul_ps(y, _mm256_castsi256_ps(exponent)));
}

float exp_weights(const float* scores, int n, float max, float* p) {
  const __m256 m = _mm256_set1_ps(max);
  Lanes s;
  for (int i = 0; i < n; i += 16) {
    const __m256 a = exp_of(_mm256_sub_ps(_mm256_loadu_ps(scores + i), m));
    const __m256 b = exp_of(_mm256_sub_ps(_mm256_loadu_ps(scores + i + 8), m));
    _mm256_storeu_ps(p + i, a);
    _mm256_storeu_ps(p + i + 8, b);
    s.a = _mm256_add_ps(s.a, a);
    s.b = _mm256_add_ps(s.b, b);
  }
  return lane_sum(s);
}

template <int kQueries>
void scores_of(const float* q, size_t q_stride, const float* y, int n, float* out, size_t out_stride) {
  for (int first = 0; first < 64; first += 32) {
    __m256 sum[kQueries][4];
    for (auto& query : sum) {
      for (__m256& s : query) s = _mm256_setzero_ps();
    }
    for (int c = 0; c < n; ++c) {
      const float* row = y + c * 64 + first;
      for (int i = 0; i < kQueries; ++i) {
        const __m256 x = _mm256_set1_ps(q[static_cast<size_t>(i) * q_stride + static_cast<size_t>(c)]);
        for (int j = 0; j < 4; ++j) {
          sum[i][j] = _mm256_fmadd_ps(x, _mm256_loadu_ps(row + j * 8), sum[i][j]);
        }
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      float* to = out + static_cast<size_t>(i) * out_stride + first;
      for (int j = 0; j < 4; ++j) _mm256_storeu_ps(to + j * 8, sum[i][j]);
    }
  }
}

void tile_scores(const float* q, size_t q_stride, int n_queries, const float* y, int n, float* out,
                 size_t out_stride) {
  int i = 0;
  for (; i + 3 <= n_queries; i += 3, q += 3 * q_stride, out += 3 * out_stride) {
    scores_of<3>(q, q_stride, y, n, out, out_stride);
  }
  for (; i < n_queries; ++i, q += q_stride, out += out_stride) {
    scores_of<1>(q, q_stride, y, n, out, out_stride);
  }
}

// kWide registers of 8 coordinates.
template <int kQueries, int kWide>
void accumulate(const float* p, size_t p_stride, const float* v, int stride, float* acc,
                size_t acc_stride) {
  __m256 sum[kQueries][kWide];
  for (int i = 0; i < kQueries; ++i) {
    for (int j = 0; j < kWide; ++j) {
      sum[i][j] = _mm256_loadu_ps(acc + static_cast<size_t>(i) * acc_stride + j * 8);
    }
  }
  for (int t = 0; t < 64; ++t, v += stride) {
    for (int i = 0; i < kQueries; ++i) {
      const __m256 x = _mm256_set1_ps(p[static_cast<size_t>(i) * p_stride + static_cast<size_t>(t)]);
      for (int j = 0; j < kWide; ++j) {
        sum[i][j] = _mm256_fmadd_ps(x, _mm256_loadu_ps(v + j * 8), sum[i][j]);
      }
    }
  }
  for (int i = 0; i < kQueries; ++i) {
    for (int j = 0; j < kWide; ++j) {
      _mm256_storeu_ps(acc + static_cast<size_t>(i) * acc_stride + j * 8, sum[i][j]);
    }
  }
}

void tile_accumulate(const float* p, size_t p_stride, int n_queries, const float* v, int stride,
                     float* acc, size_t acc_stride) {
  int i = 0;
  const auto columns = [&]<int kQueries>() {
    int c = 0;
    for (; c + 32 <= stride; c += 32) {
      accumulate<kQueries, 4>(p, p_stride, v + c, stride, acc + c, acc_stride);
    }
    for (; c < stride; c += 16) {
      accumulate<kQueries, 2>(p, p_stride, v + c, stride, acc + c, acc_stride);
    }
    i += kQueries;
    p += kQueries * p_stride;
    acc += kQueries * acc_stride;
  };
  while (i + 3 <= n_queries) columns.template operator()<3>();
  while (i < n_queries) columns.template operator()<1>();
}

void transpose8(const float* in, size_t in_stride, float* out, size_t out_stride) {
  __m256 r[8], s[8];
  for (size_t i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(in + i * in_stride);
  for (int i = 0; i < 8; i += 4) {
    const __m256 a = _mm256_unpacklo_ps(r[i], r[i + 1]), b = _mm256_unpackhi_ps(r[i], r[i + 1]);
    const __m256 c = _mm256_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm256_unpackhi_ps(r[i + 2], r[i + 3]);
    s[i] = _mm256_shuffle_ps(a, c, 0x44);
    s[i + 1] = _mm256_shuffle_ps(a, c, 0xee);
    s[i + 2] = _mm256_shuffle_ps(b, d, 0x44);
    s[i + 3] = _mm256_shuffle_ps(b, d, 0xee);
  }
  for (int j = 0; j < 4; ++j) {
    float* to = out + static_cast<size_t>(j) * out_stride;
    _mm256_storeu_ps(to, _mm256_permute2f128_ps(s[j], s[j + 4], 0x20));
    _mm256_storeu_ps(to + 4 * out_stride, _mm256_permute2f128_ps(s[j], s[j + 4], 0x31));
  }
}

void transpose(const float* in, size_t in_stride, int n_in, int n_out, float* out, size_t out_stride) {
  for (size_t i = 0; i < static_cast<size_t>(n_in); i += 8) {
    for (size_t j = 0; j < static_cast<size_t>(n_out); j += 8) {
      transpose8(in + i * in_stride + j, in_stride, out + j * out_stride + i, out_stride);
    }
  }
}

}  // namespace

const Kernels kAvx2Kernels = {
    .name = "avx2",
    .halves_to_floats = halves_to_floats,
    .visible_bits = visible_bits,
    .make_tables = make_tables,
    .quantise_tables = quantise_tables,
    .scan = scan,
    .quantise_products = quantise_products,
    .scan_products = scan_products,
    .add_sums = add_sums,
    .max_weight = max_weight,
    .quantise_weights = quantise_weights,
    .value_dots = value_dots,
    .dot = dot,
    .dense_scores = dense_scores,
    .dense_accumulate = dense_accumulate,
    .max_score = max_score,
    .exp_weights = exp_weights,
    .tile_scores = tile_scores,
    .tile_accumulate = tile_accumulate,
    .transpose = transpose,
};

}  // namespace headq
