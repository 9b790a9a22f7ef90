#include <arm_neon.h>

#include <cstddef>
#include <cstdint>

#include "attention/kernels.h"

namespace headq {
namespace {

// Sixteen lanes as four registers; see kernels.h for the order of the sum.
struct Lanes {
  float32x4_t v[4];
};

Lanes no_lanes() {
  const float32x4_t zero = vdupq_n_f32(0.0f);
  return {{zero, zero, zero, zero}};
}

Lanes load_lanes(const float* p) {
  return {{vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12)}};
}

Lanes load_lanes(const uint16_t* halves) {
  const float16x8_t a = vreinterpretq_f16_u16(vld1q_u16(halves));
  const float16x8_t b = vreinterpretq_f16_u16(vld1q_u16(halves + 8));
  return {{vcvt_f32_f16(vget_low_f16(a)), vcvt_high_f32_f16(a), vcvt_f32_f16(vget_low_f16(b)),
           vcvt_high_f32_f16(b)}};
}

void store_lanes(float* p, const Lanes& s) {
  for (int i = 0; i < 4; ++i) vst1q_f32(p + 4 * i, s.v[i]);
}

void add_products(Lanes& sum, const Lanes& a, const Lanes& b) {
  for (int i = 0; i < 4; ++i) sum.v[i] = vaddq_f32(sum.v[i], vmulq_f32(a.v[i], b.v[i]));
}

void add_products(Lanes& sum, float a, const Lanes& b) {
  for (int i = 0; i < 4; ++i) sum.v[i] = vaddq_f32(sum.v[i], vmulq_n_f32(b.v[i], a));
}

void fuse_products(Lanes& sum, float a, const Lanes& b) {
  for (int i = 0; i < 4; ++i) sum.v[i] = vfmaq_n_f32(sum.v[i], b.v[i], a);
}

float lane_sum(const Lanes& s) {
  const float32x4_t four = vaddq_f32(vaddq_f32(s.v[0], s.v[2]), vaddq_f32(s.v[1], s.v[3]));
  const float32x2_t two = vadd_f32(vget_low_f32(four), vget_high_f32(four));
  return vget_lane_f32(two, 0) + vget_lane_f32(two, 1);
}

void halves_to_floats(const uint16_t* in, size_t n, float* out) {
  size_t i = 0;
  for (; i + 16 <= n; i += 16) store_lanes(out + i, load_lanes(in + i));
  for (; i < n; ++i) {
    out[i] = vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(in[i]))), 0);
  }
}

uint64_t visible_bits(const uint16_t* mask, int n, bool* biased) {
  static constexpr uint16_t kBits[8] = {1, 2, 4, 8, 16, 32, 64, 128};
  const uint16x8_t bit = vld1q_u16(kBits);
  uint16x8_t any = vdupq_n_u16(0);
  uint64_t bits = 0;
  int t = 0;
  for (; t + 8 <= n; t += 8) {
    const uint16x8_t x = vld1q_u16(mask + t);
    const uint16x8_t seen = vmvnq_u16(vceqq_u16(x, vdupq_n_u16(0xfc00u)));
    any = vorrq_u16(any, vandq_u16(seen, vandq_u16(x, vdupq_n_u16(0x7fffu))));
    bits |= uint64_t{vaddvq_u16(vandq_u16(seen, bit))} << t;
  }
  if (vmaxvq_u16(any) != 0) *biased = true;
  for (; t < n; ++t) {
    if (mask[t] == 0xfc00u) continue;
    bits |= uint64_t{1} << t;
    if ((mask[t] & 0x7fffu) != 0) *biased = true;
  }
  return bits;
}

void make_tables(const int* term_begin, const float* patterns, const float* c, int group_begin,
                 int group_end, float* tables, float* largest) {
  for (int g = group_begin; g < group_end; ++g, tables += 16) {
    Lanes sum = no_lanes();
    for (int i = term_begin[g]; i < term_begin[g + 1]; ++i) {
      add_products(sum, c[i], load_lanes(patterns + i * 16));
    }
    store_lanes(tables, sum);
    float32x4_t top = vdupq_n_f32(0.0f);
    for (const float32x4_t& s : sum.v) top = vmaxq_f32(top, vabsq_f32(s));
    *largest++ = vmaxvq_f32(top);
  }
}

// 16 integers that fit bytes.
void store_bytes(int8_t* to, const int32x4_t (&t)[4]) {
  const int16x8_t a = vmovn_high_s32(vmovn_s32(t[0]), t[1]);
  const int16x8_t b = vmovn_high_s32(vmovn_s32(t[2]), t[3]);
  vst1q_s8(to, vmovn_high_s16(vmovn_s16(a), b));
}

void quantise_tables(const float* tables, int n_groups, int n_wide, const float* inv_unit, int8_t* low,
                     int8_t* high) {
  for (int g = 0; g < n_groups; ++g) {
    int32x4_t l[4], h[4];
    for (int i = 0; i < 4; ++i) {
      const int32x4_t t = vcvtnq_s32_f32(vmulq_n_f32(vld1q_f32(tables + g * 16 + i * 4), inv_unit[g]));
      h[i] = vdupq_n_s32(0);
      if (g < n_wide) h[i] = vcvtnq_s32_f32(vmulq_n_f32(vcvtq_f32_s32(t), 1.0f / kHighFactor));
      l[i] = vmlsq_n_s32(t, h[i], kHighFactor);
    }
    store_bytes(low + g * 16, l);
    store_bytes(high + g * 16, h);
  }
}

// Sums of 32 tokens in 16 bits, those of 16 low and of 16 high nibbles.
struct WordSums {
  int16x8_t v[4];

  void clear() {
    for (int16x8_t& x : v) x = vdupq_n_s16(0);
  }
  // x: of tokens by low and by high nibbles.
  void add(const int8x16_t (&x)[2], int8x16_t factor) {
    for (int i = 0; i < 2; ++i) {
      v[2 * i] = vmlal_s8(v[2 * i], vget_low_s8(x[i]), vget_low_s8(factor));
      v[2 * i + 1] = vmlal_high_s8(v[2 * i + 1], x[i], factor);
    }
  }
};

// sums[t] += low + factor * high for 8 tokens.
void join_sums(int16x8_t low, int16x8_t high, int16_t factor, int32_t* sums) {
  const int32x4_t a = vmlal_n_s16(vmovl_s16(vget_low_s16(low)), vget_low_s16(high), factor);
  const int32x4_t b = vmlal_n_s16(vmovl_high_s16(low), vget_high_s16(high), factor);
  vst1q_s32(sums, vaddq_s32(vld1q_s32(sums), a));
  vst1q_s32(sums + 4, vaddq_s32(vld1q_s32(sums + 4), b));
}

// The 16 bytes of each group at codes + g * 32: tokens 0 to 15 of sums and, by the high nibbles, 32 to 47.
template <int kQueries>
void scan_half(const uint8_t* codes, int n_groups, int n_wide, const int8_t* low, const int8_t* high,
               const uint8_t* factor, size_t stride, int32_t* sums) {
  constexpr int kMostGroups = 32;  // see kMostFactor
  for (int begin = 0; begin < n_groups; begin += kMostGroups) {
    const int end = n_groups - begin < kMostGroups ? n_groups : begin + kMostGroups;
    WordSums low_sum[kQueries], high_sum[kQueries];
    for (int i = 0; i < kQueries; ++i) {
      low_sum[i].clear();
      high_sum[i].clear();
    }
    const auto add_group = [&]<bool kWide>(int g) {
      const uint8x16_t c = vld1q_u8(codes + g * 32);
      const uint8x16_t n0 = vandq_u8(c, vdupq_n_u8(15)), n1 = vshrq_n_u8(c, 4);
      for (size_t i = 0; i < kQueries; ++i) {
        const size_t at = i * stride + static_cast<size_t>(g);
        const auto look_up = [&](const int8_t* table, WordSums& sum, int8_t by) {
          const int8x16_t t = vld1q_s8(table + at * 16);
          sum.add({vqtbl1q_s8(t, n0), vqtbl1q_s8(t, n1)}, vdupq_n_s8(by));
        };
        look_up(low, low_sum[i], static_cast<int8_t>(factor[at]));
        if (kWide) look_up(high, high_sum[i], 1);
      }
    };
    int g = begin;
    for (; g < end && g < n_wide; ++g) add_group.template operator()<true>(g);
    for (; g < end; ++g) add_group.template operator()<false>(g);
    for (int i = 0; i < kQueries; ++i) {
      for (int j = 0; j < 4; ++j) {
        join_sums(low_sum[i].v[j], high_sum[i].v[j], kHighFactor, sums + i * 64 + j / 2 * 32 + j % 2 * 8);
      }
    }
  }
}

void scan(const uint8_t* codes, int n_groups, int n_wide, const int8_t* low, const int8_t* high,
          const uint8_t* factor, size_t stride, int n, int32_t* sums) {
  for (int t = 0; t < 64 * n; ++t) sums[t] = 0;
  const auto queries = [&]<int kQueries>() {
    scan_half<kQueries>(codes, n_groups, n_wide, low, high, factor, stride, sums);
    scan_half<kQueries>(codes + 16, n_groups, n_wide, low, high, factor, stride, sums + 16);
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
  const auto product = [&](int i) { return vmulq_f32(vld1q_f32(halves + i), vld1q_f32(factors + i)); };
  float32x4_t most = vdupq_n_f32(0.0f);
  for (int i = 0; i < n; i += 4) most = vmaxq_f32(most, vabsq_f32(product(i)));
  const float largest = vmaxvq_f32(most);
  const float inv_unit = largest > 0.0f ? static_cast<float>(kProductTop) / largest : 0.0f;
  for (int i = 0; i < n; i += 8) {
    const int16x8_t c = vmovn_high_s32(vmovn_s32(vcvtnq_s32_f32(vmulq_n_f32(product(i), inv_unit))),
                                       vcvtnq_s32_f32(vmulq_n_f32(product(i + 4), inv_unit)));
    vst1_s8(low + i, vmovn_s16(c));
    vst1_s8(high + i, vrshrn_n_s16(c, 8));
  }
  return largest / static_cast<float>(kProductTop);
}

// The 16 bytes of each group at codes + g * 32: tokens 0 to 15 of sums and, by the high nibbles, 32 to 47.
template <int kQueries>
void scan_products_half(const uint8_t* codes, int n_groups, const int8_t* low, const int8_t* high,
                        size_t stride, int32_t* sums) {
  constexpr int kMostGroups = 40;  // of 2 * 3 * 128 each, within 16 bits
  for (int begin = 0; begin < n_groups; begin += kMostGroups) {
    const int end = n_groups - begin < kMostGroups ? n_groups : begin + kMostGroups;
    WordSums l[kQueries], h[kQueries];
    for (int i = 0; i < kQueries; ++i) {
      l[i].clear();
      h[i].clear();
    }
    for (int g = begin; g < end; ++g) {
      const uint8x16_t c = vld1q_u8(codes + g * 32), three = vdupq_n_u8(3);
      const int8x16_t x[2] = {vreinterpretq_s8_u8(vandq_u8(c, three)),
                              vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(c, 4), three))};
      const int8x16_t y[2] = {vreinterpretq_s8_u8(vandq_u8(vshrq_n_u8(c, 2), three)),
                              vreinterpretq_s8_u8(vshrq_n_u8(c, 6))};
      for (size_t i = 0; i < kQueries; ++i) {
        const size_t at = i * stride + static_cast<size_t>(g / 4 * 8 + g % 4);
        l[i].add(x, vdupq_n_s8(low[at]));
        l[i].add(y, vdupq_n_s8(low[at + 4]));
        h[i].add(x, vdupq_n_s8(high[at]));
        h[i].add(y, vdupq_n_s8(high[at + 4]));
      }
    }
    for (int i = 0; i < kQueries; ++i) {
      for (int j = 0; j < 4; ++j) join_sums(l[i].v[j], h[i].v[j], 256, sums + i * 64 + j / 2 * 32 + j % 2 * 8);
    }
  }
}

void scan_products(const uint8_t* codes, int n_groups, const int8_t* low, const int8_t* high, size_t stride,
                   int n, int32_t* sums) {
  for (int t = 0; t < 64 * n; ++t) sums[t] = 0;
  const auto queries = [&]<int kQueries>() {
    scan_products_half<kQueries>(codes, n_groups, low, high, stride, sums);
    scan_products_half<kQueries>(codes + 16, n_groups, low, high, stride, sums + 16);
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
  for (int t = 0; t < 64; t += 4) {
    float32x4_t sum = vmulq_n_f32(vcvtq_f32_s32(vld1q_s32(sums + t)), unit);
    if (scale != nullptr) {
      sum = vaddq_f32(vmulq_f32(vld1q_f32(scale + t), sum), vmulq_n_f32(vld1q_f32(zero + t), z));
    }
    vst1q_f32(out + t, vaddq_f32(vld1q_f32(out + t), sum));
  }
}

// p * scale of four tokens, 0 for those that are not in the mask.
float32x4_t weights(const float* p, const float* scale, uint64_t mask, int t) {
  static constexpr uint32_t kBits[4] = {1, 2, 4, 8};
  const uint32x4_t seen =
      vtstq_u32(vdupq_n_u32(static_cast<uint32_t>(mask >> t) & 15u), vld1q_u32(kBits));
  float32x4_t x = vld1q_f32(p + t);
  if (scale != nullptr) x = vmulq_f32(x, vld1q_f32(scale + t));
  return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(x), seen));
}

float max_weight(const float* p, const float* scale, uint64_t mask) {
  float32x4_t largest = vdupq_n_f32(0.0f);
  for (int t = 0; t < 64; t += 4) largest = vmaxq_f32(largest, weights(p, scale, mask, t));
  return vmaxvq_f32(largest);
}

// W of eight tokens.
int16x8_t integer_weights(const float* p, const float* scale, uint64_t mask, float inv_unit, int t) {
  const int32x4_t a = vcvtnq_s32_f32(vmulq_n_f32(weights(p, scale, mask, t), inv_unit));
  const int32x4_t b = vcvtnq_s32_f32(vmulq_n_f32(weights(p, scale, mask, t + 4), inv_unit));
  return vmovn_high_s32(vmovn_s32(a), b);
}

void quantise_weights(const float* p, const float* scale, uint64_t mask, float inv_unit, uint8_t* w) {
  for (int t = 0; t < 64; t += 8) {
    vst1q_u8(w + 2 * t, vreinterpretq_u8_s16(integer_weights(p, scale, mask, inv_unit, t)));
  }
}

// For products of bytes: W = 256 * high + low, first the high bytes, then the low ones in [-128, 127].
void quantise_split_weights(const float* p, const float* scale, uint64_t mask, float inv_unit,
                            uint8_t* w) {
  for (int t = 0; t < 64; t += 16) {
    const uint16x8_t a = vreinterpretq_u16_s16(integer_weights(p, scale, mask, inv_unit, t));
    const uint16x8_t b = vreinterpretq_u16_s16(integer_weights(p, scale, mask, inv_unit, t + 8));
    vst1q_u8(w + t, vrshrn_high_n_u16(vrshrn_n_u16(a, 8), b, 8));
    vst1q_u8(w + 64 + t, vmovn_high_u16(vmovn_u16(a), b));
  }
}

// One sum: its one or two tables, and where their nibbles are in a block.
struct ValueSum {
  const int8_t* tables;
  int first, second;  // offsets of groups; second < 0: one table
};

// The nibbles of tokens t .. t + 15 of the group at `codes`.
uint8x16_t nibbles_at(const uint8_t* codes, int t) {
  const uint8x16_t bytes = vld1q_u8(codes + t % 32);
  return t < 32 ? vandq_u8(bytes, vdupq_n_u8(15)) : vshrq_n_u8(bytes, 4);
}

int8x16_t look_up(const ValueSum& sum, const uint8_t* codes, int t) {
  const int8x16_t x = vqtbl1q_s8(vld1q_s8(sum.tables), nibbles_at(codes + sum.first, t));
  if (sum.second < 0) return x;
  return vaddq_s8(x, vqtbl1q_s8(vld1q_s8(sum.tables + 16), nibbles_at(codes + sum.second, t)));
}

// Each lane of a sum holds at most 16 blocks of 16 * 32639 * 128.
template <int kQueries>
void widened_dots(const uint8_t* const* codes, int n_blocks, const ValueSum& of, const uint8_t* w,
                  int n_queries, int64_t* out) {
  int32x4_t sum[kQueries];
  for (int32x4_t& s : sum) s = vdupq_n_s32(0);
  for (int b = 0; b < n_blocks; ++b, w += n_queries * kWeightBytes) {
    for (int t = 0; t < 64; t += 16) {
      const int8x16_t x = look_up(of, codes[b], t);
      const int16x8_t even = vmovl_s8(vget_low_s8(x)), odd = vmovl_high_s8(x);
      for (int q = 0; q < kQueries; ++q) {
        const uint8_t* weights_of = w + q * kWeightBytes + 2 * t;
        const int16x8_t a = vreinterpretq_s16_u8(vld1q_u8(weights_of));
        const int16x8_t c = vreinterpretq_s16_u8(vld1q_u8(weights_of + 16));
        sum[q] = vmlal_s16(sum[q], vget_low_s16(even), vget_low_s16(a));
        sum[q] = vmlal_high_s16(sum[q], even, a);
        sum[q] = vmlal_s16(sum[q], vget_low_s16(odd), vget_low_s16(c));
        sum[q] = vmlal_high_s16(sum[q], odd, c);
      }
    }
  }
  for (int q = 0; q < kQueries; ++q) out[q] = vaddlvq_s32(sum[q]);
}

#pragma GCC push_options
#pragma GCC target("arch=armv8.2-a+dotprod")

// See quantise_split_weights. No lane leaves 16 blocks of 16 * 128 * 128.
template <int kQueries>
void split_dots(const uint8_t* const* codes, int n_blocks, const ValueSum& of, const uint8_t* w,
                int n_queries, int64_t* out) {
  int32x4_t high[kQueries], low[kQueries];
  for (int q = 0; q < kQueries; ++q) high[q] = low[q] = vdupq_n_s32(0);
  for (int b = 0; b < n_blocks; ++b, w += n_queries * kWeightBytes) {
    for (int t = 0; t < 64; t += 16) {
      const int8x16_t x = look_up(of, codes[b], t);
      for (int q = 0; q < kQueries; ++q) {
        const uint8_t* weights_of = w + q * kWeightBytes + t;
        high[q] = vdotq_s32(high[q], x, vreinterpretq_s8_u8(vld1q_u8(weights_of)));
        low[q] = vdotq_s32(low[q], x, vreinterpretq_s8_u8(vld1q_u8(weights_of + 64)));
      }
    }
  }
  for (int q = 0; q < kQueries; ++q) out[q] = 256 * vaddlvq_s32(high[q]) + vaddlvq_s32(low[q]);
}

#pragma GCC pop_options

using Dots = decltype(&widened_dots<1>);
constexpr Dots kWidenedDots[3] = {widened_dots<1>, widened_dots<2>, widened_dots<3>};
constexpr Dots kSplitDots[3] = {split_dots<1>, split_dots<2>, split_dots<3>};

template <const Dots (&kDots)[3]>
void value_dots(const uint8_t* const* codes, int n_blocks, const int* group, const int8_t* tables,
                int n_sums, const uint8_t* w, int n_queries, float* out) {
  for (int i = 0; i < n_sums; ++i) {
    const int* pair = group + 2 * i;
    const ValueSum sum = {.tables = tables + i * 32,
                          .first = pair[0] * 32,
                          .second = pair[1] < 0 ? -1 : pair[1] * 32};
    for (int first = 0; first < n_queries; first += 3) {
      const int n = n_queries - first < 3 ? n_queries - first : 3;
      int64_t dots[3];
      kDots[n - 1](codes, n_blocks, sum, w + first * kWeightBytes, n_queries, dots);
      for (int q = 0; q < n; ++q) out[(first + q) * n_sums + i] = static_cast<float>(dots[q]);
    }
  }
}

float dot(const float* a, const float* b, int n) {
  Lanes s = no_lanes();
  for (int i = 0; i < n; i += 16) add_products(s, load_lanes(a + i), load_lanes(b + i));
  return lane_sum(s);
}

void dense_scores(const uint16_t* rows, int stride, int n, const float* q, float* out) {
  for (int t = 0; t < n; ++t) {
    const uint16_t* row = rows + static_cast<ptrdiff_t>(t) * stride;
    Lanes s = no_lanes();
    for (int c = 0; c < stride; c += 16) add_products(s, load_lanes(q + c), load_lanes(row + c));
    out[t] = lane_sum(s);
  }
}

void dense_accumulate(const uint16_t* rows, int stride, int n, const float* w, float* acc) {
  for (int c = 0; c < stride; c += 16) {
    Lanes s = load_lanes(acc + c);
    for (int t = 0; t < n; ++t) {
      if (w[t] == 0.0f) continue;
      add_products(s, w[t], load_lanes(rows + static_cast<ptrdiff_t>(t) * stride + c));
    }
    store_lanes(acc + c, s);
  }
}

float max_score(const float* scores, int n) {
  float32x4_t largest = vdupq_n_f32(-__builtin_inff());
  for (int i = 0; i < n; i += 4) largest = vmaxq_f32(largest, vld1q_f32(scores + i));
  return vmaxvq_f32(largest);
}

float32x4_t exp_of(float32x4_t x) {
  const uint32x4_t below = vcltq_f32(x, vdupq_n_f32(kExpLowest));
  const float32x4_t n = vrndnq_f32(vmulq_n_f32(x, kLog2e));
  float32x4_t r = vfmsq_f32(x, n, vdupq_n_f32(kLn2Hi));
  r = vfmsq_f32(r, n, vdupq_n_f32(kLn2Lo));
  float32x4_t y = vdupq_n_f32(kExpTaylor[0]);
  for (int i = 1; i < 5; ++i) y = vfmaq_f32(vdupq_n_f32(kExpTaylor[i]), y, r);
  y = vfmaq_f32(vdupq_n_f32(1.0f), y, r);
  y = vfmaq_f32(vdupq_n_f32(1.0f), y, r);
  const int32x4_t exponent = vshlq_n_s32(vaddq_s32(vcvtnq_s32_f32(n), vdupq_n_s32(127)), 23);
  const float32x4_t result = vmulq_f32(y, vreinterpretq_f32_s32(exponent));
  return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(result), below));
}

float exp_weights(const float* scores, int n, float max, float* p) {
  const float32x4_t m = vdupq_n_f32(max);
  Lanes sum = no_lanes();
  for (int i = 0; i < n; i += 16) {
    for (int j = 0; j < 4; ++j) {
      const float32x4_t x = exp_of(vsubq_f32(vld1q_f32(scores + i + 4 * j), m));
      vst1q_f32(p + i + 4 * j, x);
      sum.v[j] = vaddq_f32(sum.v[j], x);
    }
  }
  return lane_sum(sum);
}

template <size_t kQueries>
void scores_of(const float* q, size_t q_stride, const float* y, int n, float* out, size_t out_stride) {
  for (int first = 0; first < 64; first += 16) {
    Lanes sum[kQueries];
    for (Lanes& s : sum) s = no_lanes();
    for (int c = 0; c < n; ++c) {
      const Lanes row = load_lanes(y + c * 64 + first);
      for (size_t i = 0; i < kQueries; ++i) fuse_products(sum[i], q[i * q_stride + static_cast<size_t>(c)], row);
    }
    for (size_t i = 0; i < kQueries; ++i) store_lanes(out + i * out_stride + first, sum[i]);
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

template <size_t kQueries>
void accumulate(const float* p, size_t p_stride, const float* v, int stride, float* acc,
                size_t acc_stride) {
  for (int c = 0; c < stride; c += 16) {
    Lanes sum[kQueries];
    for (size_t i = 0; i < kQueries; ++i) sum[i] = load_lanes(acc + i * acc_stride + c);
    for (int t = 0; t < 64; ++t) {
      const Lanes row = load_lanes(v + static_cast<ptrdiff_t>(t) * stride + c);
      for (size_t i = 0; i < kQueries; ++i) fuse_products(sum[i], p[i * p_stride + static_cast<size_t>(t)], row);
    }
    for (size_t i = 0; i < kQueries; ++i) store_lanes(acc + i * acc_stride + c, sum[i]);
  }
}

void tile_accumulate(const float* p, size_t p_stride, int n_queries, const float* v, int stride,
                     float* acc, size_t acc_stride) {
  int i = 0;
  for (; i + 4 <= n_queries; i += 4, p += 4 * p_stride, acc += 4 * acc_stride) {
    accumulate<4>(p, p_stride, v, stride, acc, acc_stride);
  }
  for (; i < n_queries; ++i, p += p_stride, acc += acc_stride) {
    accumulate<1>(p, p_stride, v, stride, acc, acc_stride);
  }
}

void transpose(const float* in, size_t in_stride, int n_in, int n_out, float* out, size_t out_stride) {
  for (size_t i = 0; i < static_cast<size_t>(n_in); i += 4) {
    for (size_t j = 0; j < static_cast<size_t>(n_out); j += 4) {
      const float* from = in + i * in_stride + j;
      const float32x4x2_t a = vtrnq_f32(vld1q_f32(from), vld1q_f32(from + in_stride));
      const float32x4x2_t b = vtrnq_f32(vld1q_f32(from + 2 * in_stride), vld1q_f32(from + 3 * in_stride));
      float* to = out + j * out_stride + i;
      for (int k = 0; k < 2; ++k) {
        vst1q_f32(to + static_cast<size_t>(k) * out_stride,
                  vcombine_f32(vget_low_f32(a.val[k]), vget_low_f32(b.val[k])));
        vst1q_f32(to + static_cast<size_t>(k + 2) * out_stride,
                  vcombine_f32(vget_high_f32(a.val[k]), vget_high_f32(b.val[k])));
      }
    }
  }
}

template <const Dots (&kDots)[3]>
constexpr Kernels kernels_of(const char* name, decltype(Kernels::quantise_weights) weights_of) {
  return {
      .name = name,
      .halves_to_floats = halves_to_floats,
      .visible_bits = visible_bits,
      .make_tables = make_tables,
      .quantise_tables = quantise_tables,
      .scan = scan,
      .quantise_products = quantise_products,
      .scan_products = scan_products,
      .add_sums = add_sums,
      .max_weight = max_weight,
      .quantise_weights = weights_of,
      .value_dots = value_dots<kDots>,
      .dot = dot,
      .dense_scores = dense_scores,
      .dense_accumulate = dense_accumulate,
      .max_score = max_score,
      .exp_weights = exp_weights,
      .tile_scores = tile_scores,
      .tile_accumulate = tile_accumulate,
      .transpose = transpose,
  };
}

}  // namespace

const Kernels kNeonKernels = kernels_of<kWidenedDots>("neon", quantise_weights);
const Kernels kDotprodKernels = kernels_of<kSplitDots>("dotprod", quantise_split_weights);

}  // namespace headq
