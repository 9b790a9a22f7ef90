#include <immintrin.h>

#include <cstring>

#include "attention/kernels.h"

namespace headq {
namespace {

// For loops over registers: unrolled before GCC decides what lives in memory.
#define HEADQ_UNROLL _Pragma("GCC unroll 16")

// sum += four products of unsigned and signed bytes a lane. GCC 12 copies the accumulators of the
// intrinsic, _mm512_dpbusd_epi32, twice in every turn of a loop.
__m512i add_dots(__m512i sum, __m512i u, __m512i s) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(u), "v"(s));
  return sum;
}

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

uint64_t visible_bits(const uint16_t* mask, int n, bool* biased) {
  const __m512i drop = _mm512_set1_epi16(static_cast<int16_t>(0xfc00));
  const __m512i magnitude = _mm512_set1_epi16(0x7fff);
  uint64_t bits = 0;
  __mmask32 any = 0;
  for (int t = 0; t < n; t += 32) {
    const __mmask32 live = n - t >= 32 ? ~__mmask32{0} : (__mmask32{1} << (n - t)) - 1u;
    const __m512i values = _mm512_maskz_loadu_epi16(live, mask + t);
    const __mmask32 seen = _mm512_mask_cmpneq_epi16_mask(live, values, drop);
    any |= _mm512_mask_test_epi16_mask(seen, values, magnitude);
    bits |= static_cast<uint64_t>(seen) << t;
  }
  if (any != 0) *biased = true;
  return bits;
}

void make_tables(const int* term_begin, const float* patterns, const float* c, int group_begin,
                 int group_end, float* tables, float* largest) {
  for (int g = group_begin; g < group_end; ++g, tables += 16) {
    __m512 table = _mm512_setzero_ps();
    for (int i = term_begin[g]; i < term_begin[g + 1]; ++i) {
      table = _mm512_add_ps(table, _mm512_mul_ps(_mm512_set1_ps(c[i]), _mm512_loadu_ps(patterns + i * 16)));
    }
    _mm512_storeu_ps(tables, table);
    *largest++ = _mm512_reduce_max_ps(_mm512_abs_ps(table));
  }
}

void store_bytes(int8_t* to, __m512i integers) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtepi32_epi8(integers));
}

void quantise_tables(const float* tables, int n_groups, int n_wide, const float* inv_unit, int8_t* low,
                     int8_t* high) {
  const __m512 inv_base = _mm512_set1_ps(1.0f / kHighFactor);
  for (int g = 0; g < n_groups; ++g) {
    const __m512 x = _mm512_mul_ps(_mm512_loadu_ps(tables + g * 16), _mm512_set1_ps(inv_unit[g]));
    const __m512i t = _mm512_cvtps_epi32(x);
    __m512i h = _mm512_setzero_si512();
    if (g < n_wide) h = _mm512_cvtps_epi32(_mm512_mul_ps(_mm512_cvtepi32_ps(t), inv_base));
    store_bytes(low + g * 16, _mm512_sub_epi32(t, _mm512_mullo_epi32(h, _mm512_set1_epi32(kHighFactor))));
    store_bytes(high + g * 16, h);
  }
}

constexpr __mmask64 kAllBytes = ~__mmask64{0};

// Byte 4 t + j of the result is byte t + `first` of group j, out of the 128 bytes of four groups.
__m512i interleave_order(int first) {
  alignas(64) uint8_t order[64];
  for (int i = 0; i < 64; ++i) order[i] = static_cast<uint8_t>(i % 4 * 32 + i / 4 + first);
  return _mm512_load_si512(order);
}

// Tokens side by side in lanes of 32 bits, each with its nibbles of four groups: a byte picks an
// entry of four tables in a register (vpermb), and vpdpbusd adds the four.
template <int kQueries>
class Scan {
 public:
  Scan() {
    HEADQ_UNROLL
    for (int i = 0; i < kQueries * 4; ++i) sum_[i] = _mm512_setzero_si512();
  }

  // Four groups: their codes as two registers, and where their tables and factors are; of the tables'
  // bytes only the live ones are read, others count as 0. kWide: the high bytes count.
  template <bool kWide>
  void add(__m512i first, __m512i second, const int8_t* low, const int8_t* high, const uint8_t* factor,
           size_t stride, __mmask64 live) {
    const __m512i a = _mm512_permutex2var_epi8(first, order_a_, second);
    const __m512i b = _mm512_permutex2var_epi8(first, order_b_, second);
    const __m512i i0 = index_of(a), i1 = index_of(b);
    const __m512i i2 = index_of(_mm512_srli_epi16(a, 4)), i3 = index_of(_mm512_srli_epi16(b, 4));
    HEADQ_UNROLL
    for (int q = 0; q < kQueries; ++q, low += stride * 16, high += stride * 16, factor += stride) {
      const __m512i factors = load_four(factor, live);
      const __m512i table = load(low, live), high_table = kWide ? load(high, live) : table;
      const auto look_up = [&](__m512i sum, __m512i index) {
        sum = add_dots(sum, factors, _mm512_permutexvar_epi8(index, table));
        return kWide ? add_dots(sum, high_factor_, _mm512_permutexvar_epi8(index, high_table)) : sum;
      };
      sum_[q * 4] = look_up(sum_[q * 4], i0);
      sum_[q * 4 + 1] = look_up(sum_[q * 4 + 1], i1);
      sum_[q * 4 + 2] = look_up(sum_[q * 4 + 2], i2);
      sum_[q * 4 + 3] = look_up(sum_[q * 4 + 3], i3);
    }
  }

  void store(int32_t* sums) const {
    HEADQ_UNROLL
    for (int i = 0; i < kQueries * 4; ++i) _mm512_storeu_si512(sums + i * 16, sum_[i]);
  }

  static __m512i load(const int8_t* p, __mmask64 live) {
    return live == kAllBytes ? _mm512_loadu_si512(p) : _mm512_maskz_loadu_epi8(live, p);
  }
  // The factors of four groups in every lane; live bytes of tables are 16 a group.
  static __m512i load_four(const uint8_t* p, __mmask64 live) {
    uint32_t four = 0;
    std::memcpy(&four, p, live == kAllBytes ? 4 : static_cast<size_t>(_mm_popcnt_u64(live)) / 16);
    return _mm512_set1_epi32(static_cast<int>(four));
  }

 private:
  __m512i index_of(__m512i nibbles) const {
    constexpr int kAndOr = 0xea;
    return _mm512_ternarylogic_epi32(nibbles, low_nibble_, table_of_byte_, kAndOr);
  }

  const __m512i low_nibble_ = _mm512_set1_epi8(15);
  const __m512i table_of_byte_ = _mm512_set1_epi32(0x30201000);
  const __m512i order_a_ = interleave_order(0), order_b_ = interleave_order(16);
  const __m512i high_factor_ = _mm512_set1_epi8(static_cast<char>(kHighFactor));
  __m512i sum_[kQueries * 4];
};

template <int kQueries>
void scan_queries(const uint8_t* codes, int n_groups, int n_wide, const int8_t* low, const int8_t* high,
                  const uint8_t* factor, size_t stride, int32_t* sums) {
  Scan<kQueries> scan;
  int g = 0;
  const auto add_fours = [&]<bool kWide>(int end) {
    for (; g + 4 <= n_groups && g < end; g += 4, codes += 128, low += 64, high += 64, factor += 4) {
      __builtin_prefetch(codes + kFetchAhead);
      __builtin_prefetch(codes + kFetchAhead + 64);
      scan.template add<kWide>(_mm512_loadu_si512(codes), _mm512_loadu_si512(codes + 64), low, high, factor,
                               stride, kAllBytes);
    }
  };
  add_fours.template operator()<true>(n_wide);
  add_fours.template operator()<false>(n_groups);
  if (g < n_groups) {  // nibbles of absent groups are 0, and so are their tables
    const auto first_bytes = [](int n) { return n >= 64 ? kAllBytes : (__mmask64{1} << n) - 1u; };
    const int left = n_groups - g;
    const __m512i first = _mm512_maskz_loadu_epi8(first_bytes(left * 32), codes);
    const __m512i second = left > 2 ? _mm512_zextsi256_si512(load256(codes + 64)) : _mm512_setzero_si512();
    scan.template add<true>(first, second, low, high, factor, stride, first_bytes(left * 16));
  }
  scan.store(sums);
}

void scan(const uint8_t* codes, int n_groups, int n_wide, const int8_t* low, const int8_t* high,
          const uint8_t* factor, size_t stride, int n, int32_t* sums) {
  const auto queries = [&]<int kQueries>() {
    scan_queries<kQueries>(codes, n_groups, n_wide, low, high, factor, stride, sums);
    low += kQueries * stride * 16;
    high += kQueries * stride * 16;
    factor += kQueries * stride;
    sums += kQueries * 64;
    n -= kQueries;
  };
  while (n >= 4) queries.template operator()<4>();
  if (n == 3) queries.template operator()<3>();
  if (n == 2) queries.template operator()<2>();
  if (n == 1) queries.template operator()<1>();
}

float quantise_products(const float* halves, const float* factors, int n, int8_t* low, int8_t* high) {
  const auto product = [&](int i) {
    const __mmask16 live = n - i >= 16 ? 0xffff : 0x00ff;
    return _mm512_mul_ps(_mm512_maskz_loadu_ps(live, halves + i), _mm512_maskz_loadu_ps(live, factors + i));
  };
  __m512 most = _mm512_setzero_ps();
  for (int i = 0; i < n; i += 16) most = _mm512_max_ps(_mm512_abs_ps(product(i)), most);
  const float largest = _mm512_reduce_max_ps(most);
  const __m512 inv_unit = _mm512_set1_ps(largest > 0.0f ? static_cast<float>(kProductTop) / largest : 0.0f);
  for (int i = 0; i < n; i += 16) {
    const __mmask16 live = n - i >= 16 ? 0xffff : 0x00ff;
    const __m512i c = _mm512_cvtps_epi32(_mm512_mul_ps(product(i), inv_unit));
    _mm512_mask_cvtepi32_storeu_epi8(low + i, live, c);
    _mm512_mask_cvtepi32_storeu_epi8(high + i, live,
                                     _mm512_srai_epi32(_mm512_add_epi32(c, _mm512_set1_epi32(128)), 8));
  }
  return largest / static_cast<float>(kProductTop);
}

// sum += products with the four bytes at p in every lane; see add_dots.
__m512i add_dots_with(__m512i sum, __m512i u, const int8_t* p) {
  asm("vpdpbusd (%2)%{1to16%}, %1, %0" : "+v"(sum) : "v"(u), "r"(p), "m"(*reinterpret_cast<const int8_t(*)[4]>(p)));
  return sum;
}

template <int kQueries>
void scan_products_of(const uint8_t* codes, int n_groups, const int8_t* low, const int8_t* high,
                      size_t stride, int32_t* sums) {
  const __m512i order_a = interleave_order(0), order_b = interleave_order(16), three = _mm512_set1_epi8(3);
  __m512i l[kQueries][4], h[kQueries][4];
  HEADQ_UNROLL
  for (int q = 0; q < kQueries; ++q) {
    HEADQ_UNROLL
    for (int i = 0; i < 4; ++i) l[q][i] = h[q][i] = _mm512_setzero_si512();
  }
  for (int g = 0; g < n_groups; g += 4, codes += 128, low += 8, high += 8) {
    __m512i first, second;
    if (n_groups - g >= 4) {
      __builtin_prefetch(codes + kFetchAhead);
      __builtin_prefetch(codes + kFetchAhead + 64);
      first = _mm512_loadu_si512(codes);
      second = _mm512_loadu_si512(codes + 64);
    } else {
      const int left = (n_groups - g) * 32;
      first = _mm512_maskz_loadu_epi8(left >= 64 ? kAllBytes : (__mmask64{1} << left) - 1u, codes);
      second = left > 64 ? _mm512_zextsi256_si512(load256(codes + 64)) : _mm512_setzero_si512();
    }
    const __m512i bytes[2] = {_mm512_permutex2var_epi8(first, order_a, second),
                              _mm512_permutex2var_epi8(first, order_b, second)};
    HEADQ_UNROLL
    for (int i = 0; i < 4; ++i) {  // tokens 0-15, 16-31 by low nibbles, 32-47, 48-63 by high ones
      const __m512i b = i < 2 ? bytes[i % 2] : _mm512_srli_epi16(bytes[i % 2], 4);
      const __m512i x = _mm512_and_si512(b, three);
      const __m512i y = _mm512_and_si512(_mm512_srli_epi16(b, 2), three);
      HEADQ_UNROLL
      for (int q = 0; q < kQueries; ++q) {
        const size_t at = static_cast<size_t>(q) * stride;
        l[q][i] = add_dots_with(add_dots_with(l[q][i], x, low + at), y, low + at + 4);
        h[q][i] = add_dots_with(add_dots_with(h[q][i], x, high + at), y, high + at + 4);
      }
    }
  }
  HEADQ_UNROLL
  for (int q = 0; q < kQueries; ++q) {
    HEADQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      _mm512_storeu_si512(sums + q * 64 + i * 16, _mm512_add_epi32(l[q][i], _mm512_slli_epi32(h[q][i], 8)));
    }
  }
}

void scan_products(const uint8_t* codes, int n_groups, const int8_t* low, const int8_t* high, size_t stride,
                   int n, int32_t* sums) {
  const auto queries = [&]<int kQueries>() {
    scan_products_of<kQueries>(codes, n_groups, low, high, stride, sums);
    low += kQueries * stride;
    high += kQueries * stride;
    sums += kQueries * 64;
    n -= kQueries;
  };
  while (n >= 3) queries.template operator()<3>();
  if (n == 2) queries.template operator()<2>();
  if (n == 1) queries.template operator()<1>();
}

void add_sums(const int32_t* sums, float unit, const float* scale, const float* zero, float z,
              float* out) {
  for (int t = 0; t < 64; t += 16) {
    __m512 x = _mm512_mul_ps(_mm512_set1_ps(unit),
                             _mm512_cvtepi32_ps(_mm512_loadu_si512(sums + t)));
    if (scale != nullptr) {
      x = _mm512_add_ps(_mm512_mul_ps(_mm512_loadu_ps(scale + t), x),
                        _mm512_mul_ps(_mm512_loadu_ps(zero + t), _mm512_set1_ps(z)));
    }
    _mm512_storeu_ps(out + t, _mm512_add_ps(_mm512_loadu_ps(out + t), x));
  }
}

__m512 weights(const float* p, const float* scale, uint64_t mask, int t) {
  const __mmask16 live = static_cast<__mmask16>(mask >> t);
  const __m512 x = _mm512_maskz_loadu_ps(live, p + t);
  return scale != nullptr ? _mm512_maskz_mul_ps(live, x, _mm512_loadu_ps(scale + t)) : x;
}

float max_weight(const float* p, const float* scale, uint64_t mask) {
  __m512 largest = _mm512_setzero_ps();
  for (int t = 0; t < 64; t += 16) largest = _mm512_max_ps(weights(p, scale, mask, t), largest);
  return _mm512_reduce_max_ps(largest);
}

// High bytes, then low bytes: W = 256 * high + low.
void quantise_weights(const float* p, const float* scale, uint64_t mask, float inv_unit, uint8_t* w) {
  const __m512 inv = _mm512_set1_ps(inv_unit);
  for (int t = 0; t < 64; t += 16) {
    const __m512i x = _mm512_cvtps_epi32(_mm512_mul_ps(weights(p, scale, mask, t), inv));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(w + t), _mm512_cvtepi32_epi8(_mm512_srli_epi32(x, 8)));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(w + 64 + t), _mm512_cvtepi32_epi8(x));
  }
}

// The sums of the lanes of four registers; half of them fit 32 bits, all may not.
__m128 lane_sums(__m512i a, __m512i b, __m512i c, __m512i d) {
  const __m512i ab = _mm512_add_epi32(_mm512_unpacklo_epi32(a, b), _mm512_unpackhi_epi32(a, b));
  const __m512i cd = _mm512_add_epi32(_mm512_unpacklo_epi32(c, d), _mm512_unpackhi_epi32(c, d));
  const __m512i all = _mm512_add_epi32(_mm512_unpacklo_epi64(ab, cd), _mm512_unpackhi_epi64(ab, cd));
  const __m256i half = _mm256_add_epi32(_mm512_castsi512_si256(all), _mm512_extracti64x4_epi64(all, 1));
  return _mm256_cvtpd_ps(_mm256_add_pd(_mm256_cvtepi32_pd(_mm256_castsi256_si128(half)),
                                       _mm256_cvtepi32_pd(_mm256_extracti128_si256(half, 1))));
}

// A block's codes, and the weights of up to three queries.
struct WeighedBlock {
  const uint8_t* codes;
  const uint8_t* w;
};

// Two sums and where their nibbles lie in a block.
struct SumPair {
  ptrdiff_t offset[2][2];  // [sum][table]
  const int8_t* tables[2];
};

enum class PairShape {
  kApart,    // two tables each
  kSame,     // of the same groups
  kChained,  // the second sum begins with the group that the first one ends with
  kSingle,   // one table each
};

template <PairShape kShape>
class ValueTerms {
 public:
  explicit ValueTerms(const SumPair& pair) : pair_(pair) {
    HEADQ_UNROLL
    for (int i = 0; i < 4; ++i) {
      table_[i] = _mm512_broadcast_i32x4(
          _mm_loadu_si128(reinterpret_cast<const __m128i*>(pair.tables[i / 2] + i % 2 * 16)));
    }
  }

  // x of both sums for the tokens of a block.
  void read(const uint8_t* codes, __m512i& x0, __m512i& x1) const {
    const __m512i a = nibbles(codes + pair_.offset[0][0]);
    if (kShape == PairShape::kSingle) {
      x0 = _mm512_shuffle_epi8(table_[0], a);
      x1 = _mm512_shuffle_epi8(table_[2], nibbles(codes + pair_.offset[1][0]));
      return;
    }
    const __m512i b = nibbles(codes + pair_.offset[0][1]);
    const __m512i c = kShape == PairShape::kSame      ? a
                      : kShape == PairShape::kChained ? b
                                                      : nibbles(codes + pair_.offset[1][0]);
    const __m512i d = kShape == PairShape::kSame ? b : nibbles(codes + pair_.offset[1][1]);
    x0 = _mm512_add_epi8(_mm512_shuffle_epi8(table_[0], a), _mm512_shuffle_epi8(table_[1], b));
    x1 = _mm512_add_epi8(_mm512_shuffle_epi8(table_[2], c), _mm512_shuffle_epi8(table_[3], d));
  }

 private:
  // A byte each, in the order of tokens.
  __m512i nibbles(const uint8_t* group) const {
    const __m512i twice = _mm512_broadcast_i64x4(load256(group));
    return _mm512_and_si512(_mm512_multishift_epi64_epi8(shifts_, twice), low_nibble_);
  }

  const SumPair& pair_;
  __m512i table_[4];
  const __m512i shifts_ = _mm512_setr_epi64(
      0x3830282018100800, 0x3830282018100800, 0x3830282018100800, 0x3830282018100800,
      0x3c342c241c140c04, 0x3c342c241c140c04, 0x3c342c241c140c04, 0x3c342c241c140c04);
  const __m512i low_nibble_ = _mm512_set1_epi8(15);
};

// Two sums against up to three queries, all blocks at once. Only the first n_high blocks have weights
// with high bytes other than 0. Lanes hold at most 16 blocks of 4 * 32639 * 128. out: [query][2]
template <int kQueries, PairShape kShape>
void value_dots_of(const WeighedBlock* blocks, int n_blocks, int n_high, const SumPair& pair, float* out) {
  const ValueTerms<kShape> terms(pair);
  __m512i high[2][kQueries], low[2][kQueries];
  HEADQ_UNROLL
  for (int q = 0; q < kQueries; ++q) {
    high[0][q] = high[1][q] = low[0][q] = low[1][q] = _mm512_setzero_si512();
  }
  const auto add = [&]<bool kHigh>(int begin, int end) {
    for (int b = begin; b < end; ++b) {
      __m512i x0, x1;
      terms.read(blocks[b].codes, x0, x1);
      HEADQ_UNROLL
      for (int q = 0; q < kQueries; ++q) {
        const uint8_t* w = blocks[b].w + q * kWeightBytes;
        const __m512i low_bytes = _mm512_loadu_si512(w + 64);
        low[0][q] = add_dots(low[0][q], low_bytes, x0);
        low[1][q] = add_dots(low[1][q], low_bytes, x1);
        if (!kHigh) continue;
        const __m512i high_bytes = _mm512_loadu_si512(w);
        high[0][q] = add_dots(high[0][q], high_bytes, x0);
        high[1][q] = add_dots(high[1][q], high_bytes, x1);
      }
    }
  };
  add.template operator()<true>(0, n_high);
  add.template operator()<false>(n_high, n_blocks);
  const auto joined = [&](int q, int i) {
    if (q >= kQueries) return _mm512_setzero_si512();
    return _mm512_add_epi32(_mm512_slli_epi32(high[i][q], 8), low[i][q]);
  };
  _mm_storeu_ps(out, lane_sums(joined(0, 0), joined(0, 1), joined(1, 0), joined(1, 1)));
  if (kQueries == 3) {
    _mm_storeu_ps(out + 4, lane_sums(joined(2, 0), joined(2, 1), joined(2, 0), joined(2, 1)));
  }
}

using ValueDots = decltype(&value_dots_of<1, PairShape::kApart>);

template <PairShape kShape>
constexpr ValueDots kValueDots[3] = {value_dots_of<1, kShape>, value_dots_of<2, kShape>,
                                     value_dots_of<3, kShape>};

const ValueDots* value_dots_for(const int* first, const int* second) {
  if (first[1] < 0 && second[1] < 0) return kValueDots<PairShape::kSingle>;
  if (first[1] < 0 || second[1] < 0) return kValueDots<PairShape::kApart>;
  if (first[0] == second[0] && first[1] == second[1]) return kValueDots<PairShape::kSame>;
  return first[1] == second[0] ? kValueDots<PairShape::kChained> : kValueDots<PairShape::kApart>;
}

// Those with high bytes first.
int order_blocks(const uint8_t* const* codes, int n_blocks, const uint8_t* w, size_t w_stride,
                 int n_queries, WeighedBlock* out) {
  int n_high = 0, n_low = 0;
  for (int b = 0; b < n_blocks; ++b, w += w_stride) {
    __m512i any = _mm512_setzero_si512();
    for (int q = 0; q < n_queries; ++q) any = _mm512_or_si512(any, _mm512_loadu_si512(w + q * kWeightBytes));
    const bool high = _mm512_test_epi32_mask(any, any) != 0;
    out[high ? n_high++ : n_blocks - ++n_low] = {codes[b], w};
  }
  return n_high;
}

void value_dots(const uint8_t* const* codes, int n_blocks, const int* group, const int8_t* tables,
                int n_sums, const uint8_t* w, int n_queries, float* out) {
  const size_t w_stride = static_cast<size_t>(n_queries) * kWeightBytes;
  for (int first = 0; first < n_queries; first += 3, w += 3 * kWeightBytes) {
    const int n = n_queries - first < 3 ? n_queries - first : 3;
    WeighedBlock blocks[kMostValueBlocks];
    const int n_high = order_blocks(codes, n_blocks, w, w_stride, n, blocks);
    for (int i = 0; i < n_sums; i += 2) {
      const int sums[2] = {i, i + 1 < n_sums ? i + 1 : i};
      SumPair pair;
      for (int j = 0; j < 2; ++j) {
        const int* at = group + 2 * sums[j];
        pair.offset[j][0] = at[0] * 32;
        pair.offset[j][1] = (at[1] < 0 ? at[0] : at[1]) * 32;
        pair.tables[j] = tables + sums[j] * 32;
      }
      float dots[8];
      value_dots_for(group + 2 * sums[0], group + 2 * sums[1])[n - 1](blocks, n_blocks, n_high, pair, dots);
      for (int q = 0; q < n; ++q) {
        float* to = out + (first + q) * n_sums;
        to[sums[1]] = dots[2 * q + 1];
        to[sums[0]] = dots[2 * q];
      }
    }
  }
}

float dot(const float* a, const float* b, int n) {
  __m512 s = _mm512_setzero_ps();
  for (int i = 0; i < n; i += 16) {
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
  __m512 r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2Hi), x);
  r = _mm512_fnmadd_ps(n, _mm512_set1_ps(kLn2Lo), r);
  __m512 y = _mm512_set1_ps(kExpTaylor[0]);
  for (int i = 1; i < 5; ++i) y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(kExpTaylor[i]));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
  y = _mm512_fmadd_ps(y, r, _mm512_set1_ps(1.0f));
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

template <int kQueries>
void scores_of(const float* q, size_t q_stride, const float* y, int n, float* out, size_t out_stride) {
  __m512 sum[kQueries][4];
  HEADQ_UNROLL
  for (auto& query : sum) {
    HEADQ_UNROLL
    for (__m512& s : query) s = _mm512_setzero_ps();
  }
  for (int c = 0; c < n; ++c, y += 64) {
    const __m512 y0 = _mm512_loadu_ps(y), y1 = _mm512_loadu_ps(y + 16), y2 = _mm512_loadu_ps(y + 32),
                 y3 = _mm512_loadu_ps(y + 48);
    HEADQ_UNROLL
    for (int i = 0; i < kQueries; ++i) {
      const __m512 x = _mm512_set1_ps(q[static_cast<size_t>(i) * q_stride + static_cast<size_t>(c)]);
      sum[i][0] = _mm512_fmadd_ps(x, y0, sum[i][0]);
      sum[i][1] = _mm512_fmadd_ps(x, y1, sum[i][1]);
      sum[i][2] = _mm512_fmadd_ps(x, y2, sum[i][2]);
      sum[i][3] = _mm512_fmadd_ps(x, y3, sum[i][3]);
    }
  }
  HEADQ_UNROLL
  for (int i = 0; i < kQueries; ++i, out += out_stride) {
    HEADQ_UNROLL
    for (int j = 0; j < 4; ++j) _mm512_storeu_ps(out + j * 16, sum[i][j]);
  }
}

void tile_scores(const float* q, size_t q_stride, int n_queries, const float* y, int n, float* out,
                 size_t out_stride) {
  int i = 0;
  for (; i + 4 <= n_queries; i += 4, q += 4 * q_stride, out += 4 * out_stride) {
    scores_of<4>(q, q_stride, y, n, out, out_stride);
  }
  for (; i < n_queries; ++i, q += q_stride, out += out_stride) {
    scores_of<1>(q, q_stride, y, n, out, out_stride);
  }
}

// kWide registers of 16 coordinates.
template <int kQueries, int kWide>
void accumulate(const float* p, size_t p_stride, const float* v, int stride, float* acc,
                size_t acc_stride) {
  __m512 sum[kQueries][kWide];
  HEADQ_UNROLL
  for (int i = 0; i < kQueries; ++i) {
    HEADQ_UNROLL
    for (int j = 0; j < kWide; ++j) {
      sum[i][j] = _mm512_loadu_ps(acc + static_cast<size_t>(i) * acc_stride + j * 16);
    }
  }
  for (int t = 0; t < 64; ++t, v += stride) {
    __m512 row[kWide];
    HEADQ_UNROLL
    for (int j = 0; j < kWide; ++j) row[j] = _mm512_loadu_ps(v + j * 16);
    HEADQ_UNROLL
    for (int i = 0; i < kQueries; ++i) {
      const __m512 x = _mm512_set1_ps(p[static_cast<size_t>(i) * p_stride + static_cast<size_t>(t)]);
      HEADQ_UNROLL
      for (int j = 0; j < kWide; ++j) sum[i][j] = _mm512_fmadd_ps(x, row[j], sum[i][j]);
    }
  }
  HEADQ_UNROLL
  for (int i = 0; i < kQueries; ++i) {
    HEADQ_UNROLL
    for (int j = 0; j < kWide; ++j) {
      _mm512_storeu_ps(acc + static_cast<size_t>(i) * acc_stride + j * 16, sum[i][j]);
    }
  }
}

void tile_accumulate(const float* p, size_t p_stride, int n_queries, const float* v, int stride,
                     float* acc, size_t acc_stride) {
  int i = 0;
  const auto columns = [&]<int kQueries>() {
    int c = 0;
    for (; c + 64 <= stride; c += 64) {
      accumulate<kQueries, 4>(p, p_stride, v + c, stride, acc + c, acc_stride);
    }
    for (; c < stride; c += 16) {
      accumulate<kQueries, 1>(p, p_stride, v + c, stride, acc + c, acc_stride);
    }
    i += kQueries;
    p += kQueries * p_stride;
    acc += kQueries * acc_stride;
  };
  while (i + 4 <= n_queries) columns.template operator()<4>();
  while (i < n_queries) columns.template operator()<1>();
}

// 16 x 16: transposes the 4 x 4 within lanes, then the lanes.
void transpose16(const float* in, size_t in_stride, float* out, size_t out_stride) {
  __m512 r[16], s[16];
  for (size_t i = 0; i < 16; ++i) r[i] = _mm512_loadu_ps(in + i * in_stride);
  for (int i = 0; i < 16; i += 4) {
    const __m512 a = _mm512_unpacklo_ps(r[i], r[i + 1]), b = _mm512_unpackhi_ps(r[i], r[i + 1]);
    const __m512 c = _mm512_unpacklo_ps(r[i + 2], r[i + 3]), d = _mm512_unpackhi_ps(r[i + 2], r[i + 3]);
    s[i] = _mm512_shuffle_ps(a, c, 0x44);
    s[i + 1] = _mm512_shuffle_ps(a, c, 0xee);
    s[i + 2] = _mm512_shuffle_ps(b, d, 0x44);
    s[i + 3] = _mm512_shuffle_ps(b, d, 0xee);
  }
  for (int j = 0; j < 4; ++j) {
    const __m512 a = _mm512_shuffle_f32x4(s[j], s[j + 4], 0x88);
    const __m512 b = _mm512_shuffle_f32x4(s[j], s[j + 4], 0xdd);
    const __m512 c = _mm512_shuffle_f32x4(s[j + 8], s[j + 12], 0x88);
    const __m512 d = _mm512_shuffle_f32x4(s[j + 8], s[j + 12], 0xdd);
    float* to = out + static_cast<size_t>(j) * out_stride;
    _mm512_storeu_ps(to, _mm512_shuffle_f32x4(a, c, 0x88));
    _mm512_storeu_ps(to + 4 * out_stride, _mm512_shuffle_f32x4(b, d, 0x88));
    _mm512_storeu_ps(to + 8 * out_stride, _mm512_shuffle_f32x4(a, c, 0xdd));
    _mm512_storeu_ps(to + 12 * out_stride, _mm512_shuffle_f32x4(b, d, 0xdd));
  }
}

void transpose(const float* in, size_t in_stride, int n_in, int n_out, float* out, size_t out_stride) {
  for (size_t i = 0; i < static_cast<size_t>(n_in); i += 16) {
    for (size_t j = 0; j < static_cast<size_t>(n_out); j += 16) {
      transpose16(in + i * in_stride + j, in_stride, out + j * out_stride + i, out_stride);
    }
  }
}

}  // namespace

const Kernels kAvx512Kernels = {
    .name = "avx512",
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
