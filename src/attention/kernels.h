#pragma once

#include <cstddef>
#include <cstdint>

namespace headq {

// The inner loops of attention over a packed cache, one set per ISA level. Every level gives the
// same bits: integers are exact, and float sums run in 16 lanes (element i in lane i % 16, lanes
// added as a binary tree) without fused multiply-adds. The scalar set is the reference.
//
// Shapes: a block has 64 tokens; codes are [n_groups][32] bytes as in codec/codec.h; pointers need
// no alignment.

// exp(x) for x in [-87, 0]: n = rint(x / ln 2), r = x - n ln 2 in two steps, then the Taylor
// polynomial of degree 6 of exp(r), |r| <= ln 2 / 2: relative error below 2^-21.
inline constexpr float kExpLowest = -87.0f;
inline constexpr float kLog2e = 1.44269504f;
inline constexpr float kLn2Hi = 0.693359375f;     // 10 significant bits: n * kLn2Hi is exact
inline constexpr float kLn2Lo = -2.12194440e-4f;  // ln 2 - kLn2Hi
inline constexpr float kExpTaylor[5] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2};

struct Kernels {
  const char* name;

  // out[i] = in[i] as f32.
  void (*halves_to_floats)(const uint16_t* in, size_t n, float* out);

  // Bit t says that mask[t] is not -inf, for t < n <= 64.
  uint64_t (*visible_bits)(const uint16_t* mask, int n);

  // tables[g][n] = sum over terms i of group g of c[i] * patterns[i][n], for g in
  // [group_begin, group_end); term_begin[g]..term_begin[g + 1] are group g's terms. tables starts at
  // group_begin. Returns the largest magnitude.
  float (*make_tables)(const int* term_begin, const float* patterns, const float* c,
                       int group_begin, int group_end, float* tables);

  // u = rint(tables * inv_unit) + 32768 as low bytes lo[g][16] and high bytes hi[g][16];
  // |tables * inv_unit| <= 32767.
  void (*quantise_tables)(const float* tables, int n_groups, float inv_unit, uint8_t* lo,
                          uint8_t* hi);

  // sums[t] = sum_g (u_g[nibble g of t] - 32768) for the 64 tokens of a block.
  void (*scan)(const uint8_t* codes, int n_groups, const uint8_t* lo, const uint8_t* hi,
               int32_t* sums);

  // Weights of a block for the value pass: x[t] = p[t] * scale[t] (scale may be null), rounded to
  // w[t] = rint(x[t] * 32767 / max x). Returns max x / 32767, 0 when all are 0.
  float (*quantise_weights)(const float* p, const float* scale, int16_t* w);

  // out[i] = sum_t w[t] * table_i[nibble group[i] of t], table_i at tables + 16 * i.
  void (*value_dots)(const uint8_t* codes, const int* group, const int8_t* tables, int n_terms,
                     const int16_t* w, int32_t* out);

  // Dot product over 64 elements.
  float (*dot64)(const float* a, const float* b);

  // out[t] = q . row t for n f16 rows of `stride` elements (a multiple of 16).
  void (*dense_scores)(const uint16_t* rows, int stride, int n, const float* q, float* out);

  // acc += w[t] * row t, t in order, rows with w[t] == 0 left out.
  void (*dense_accumulate)(const uint16_t* rows, int stride, int n, const float* w, float* acc);

  // Largest of n scores (n a multiple of 16).
  float (*max_score)(const float* scores, int n);

  // p[i] = exp(scores[i] - max), exactly 0 below exp(-87); returns their sum (n a multiple of 16).
  float (*exp_weights)(const float* scores, int n, float max, float* p);
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

}  // namespace headq
