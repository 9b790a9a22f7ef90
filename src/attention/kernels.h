#pragma once

#include <cstddef>
#include <cstdint>

namespace headq {

// The inner loops of attention over a packed cache, one set per ISA level. Every level gives the
// same bits: integers are exact, and float sums run in 16 lanes (element i in lane i % 16, lanes
// added as a binary tree) without fused multiply-adds, unless it says otherwise. The scalar set is
// the reference.
//
// Shapes: a block has 64 tokens; codes are [n_groups][32] bytes as in codec/codec.h; pointers need
// no alignment.

// exp(x) for x in [-87, 0]: n = rint(x / ln 2), r = x - n ln 2 in two steps, then the Taylor
// polynomial of degree 6 of exp(r), |r| <= ln 2 / 2, by fused multiply-adds: relative error below 2^-21.
inline constexpr float kExpLowest = -87.0f;
inline constexpr float kLog2e = 1.44269504f;
inline constexpr float kLn2Hi = 0.693359375f;     // 10 significant bits: n * kLn2Hi is exact
inline constexpr float kLn2Lo = -2.12194440e-4f;  // ln 2 - kLn2Hi
inline constexpr float kExpTaylor[5] = {1.0f / 720, 1.0f / 120, 1.0f / 24, 1.0f / 6, 1.0f / 2};

// Integer tables of keys. T = factor * low + kHighFactor * high, both signed bytes; wide groups have
// factor 1, narrow ones no high bytes.
inline constexpr int kHighFactor = 255;
inline constexpr int kTableTop = 32512;  // 127 * 255 + 127
inline constexpr int kNarrowTop = 127;   // of low in a narrow group
inline constexpr int kMostFactor = 8;    // the sum of 32 narrow groups fits 16 bits

// Blocks of a head lie side by side in memory, and a scan reads codes faster than they come from there: it
// asks for those this many bytes on.
inline constexpr int kFetchAhead = 4096;

inline constexpr int kProductTop = 32639;  // 127 * 256 + 127
inline constexpr int kWeightTop = 32639;  // 127 * 256 + 127: two signed bytes with base 256
inline constexpr int kWeightBytes = 128;
inline constexpr int kMostValueBlocks = 16;

struct Kernels {
  const char* name;

  // out[i] = in[i] as f32.
  void (*halves_to_floats)(const uint16_t* in, size_t n, float* out);

  // Bit t says that mask[t] is not -inf, for t < n <= 64; *biased is set when one of these is not 0.
  uint64_t (*visible_bits)(const uint16_t* mask, int n, bool* biased);

  // tables[g][n] = sum over terms i of group g of c[i] * patterns[i][n], for g in
  // [group_begin, group_end); term_begin[g]..term_begin[g + 1] are group g's terms. tables and largest
  // start at group_begin; largest[g] is the largest magnitude in the group's table.
  void (*make_tables)(const int* term_begin, const float* patterns, const float* c, int group_begin,
                      int group_end, float* tables, float* largest);

  // T = rint(tables * inv_unit[g]) as low[g][16] and high[g][16]: |T| <= kTableTop for the first n_wide
  // groups, at most kNarrowTop for the others, whose low bytes say all (T before its factor).
  void (*quantise_tables)(const float* tables, int n_groups, int n_wide, const float* inv_unit,
                          int8_t* low, int8_t* high);

  // sums[i][t] = sum_g T_ig[nibble g of t] for the 64 tokens of a block and the tables of n queries:
  // low and high [n][stride][16], factor [n][stride] at most kMostFactor. At most the first n_wide groups
  // are wide.
  void (*scan)(const uint8_t* codes, int n_groups, int n_wide, const int8_t* low, const int8_t* high,
               const uint8_t* factor, size_t stride, int n, int32_t* sums);

  // The integers C = rint(halves[i] * factors[i] / unit) as C = low + 256 * high, n of them (a multiple of
  // 8); |C| <= kProductTop. Returns the unit; 0 when all are 0.
  float (*quantise_products)(const float* halves, const float* factors, int n, int8_t* low, int8_t* high);

  // sums[i][t] = sum_g A_ig (nibble g of t & 3) + B_ig (nibble g of t >> 2) for the tokens of a block and n
  // queries, A and B of these as integers in the order of Segment::half_index, [n][stride].
  void (*scan_products)(const uint8_t* codes, int n_groups, const int8_t* low, const int8_t* high,
                        size_t stride, int n, int32_t* sums);

  // out[t] += unit * sums[t], or scale[t] * (unit * sums[t]) + zero[t] * z with parameters of tokens.
  void (*add_sums)(const int32_t* sums, float unit, const float* scale, const float* zero, float z,
                   float* out);

  // Largest p[t] * scale[t] (scale may be null) of the tokens in mask, at least 0.
  float (*max_weight)(const float* p, const float* scale, uint64_t mask);

  // The integers W[t] = rint(p[t] * scale[t] * inv_unit), in [0, kWeightTop], of the tokens in mask and
  // 0 of others, in the form that this level's value_dots reads: kWeightBytes.
  void (*quantise_weights)(const float* p, const float* scale, uint64_t mask, float inv_unit,
                           uint8_t* w);

  // out[q][i] = sum over blocks b and tokens t of W_bq[t] * x_i(t, b), as in ValueSums of codec/codec.h:
  // group [n_sums][2], tables [n_sums][2][16] (zeros for none), weights at
  // w + (b * n_queries + q) * kWeightBytes. Exact but for the rounding to f32. At most
  // kMostValueBlocks blocks.
  void (*value_dots)(const uint8_t* const* codes, int n_blocks, const int* group, const int8_t* tables,
                     int n_sums, const uint8_t* w, int n_queries, float* out);

  // Dot product over n elements, a multiple of 16.
  float (*dot)(const float* a, const float* b, int n);

  // out[t] = q . row t for n f16 rows of `stride` elements (a multiple of 16).
  void (*dense_scores)(const uint16_t* rows, int stride, int n, const float* q, float* out);

  // acc += w[t] * row t, t in order, rows with w[t] == 0 left out.
  void (*dense_accumulate)(const uint16_t* rows, int stride, int n, const float* w, float* acc);

  // Largest of n scores (n a multiple of 16).
  float (*max_score)(const float* scores, int n);

  // p[i] = exp(scores[i] - max), exactly 0 below exp(-87); returns their sum (n a multiple of 16).
  float (*exp_weights)(const float* scores, int n, float max, float* p);

  // For many queries. These sums are chains of fused multiply-adds in the order of the index.

  // out[i][t] = sum_c q[i][c] * y[c][t] for the 64 tokens of a block, c < n.
  void (*tile_scores)(const float* q, size_t q_stride, int n_queries, const float* y, int n,
                      float* out, size_t out_stride);

  // acc[i][c] += sum over the 64 tokens of p[i][t] * v[t][c], c < stride (a multiple of 16).
  void (*tile_accumulate)(const float* p, size_t p_stride, int n_queries, const float* v, int stride,
                          float* acc, size_t acc_stride);

  // out[j][i] = in[i][j] for i < n_in, j < n_out (multiples of 16).
  void (*transpose)(const float* in, size_t in_stride, int n_in, int n_out, float* out,
                    size_t out_stride);
};

extern const Kernels kScalarKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#elif defined(__aarch64__)
extern const Kernels kNeonKernels;
extern const Kernels kDotprodKernels;
#endif

}  // namespace headq
