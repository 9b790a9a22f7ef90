#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "core/half.h"
#include "headq/profile.h"
#include "headq/spec.h"

namespace headq {

inline constexpr int kBlockTokens = 64;
inline constexpr int kGroupBytes = 32;  // one nibble of each token of a block

// A packed block of one head: n_groups * 32 bytes of nibbles, then n_params halves.
//
// Nibble g of token t lies in byte g * 32 + (t & 31): the low half for t < 32, the high half for
// t >= 32. Every read of a block is a sum over g of a 16-entry table indexed by nibble g.
struct BlockLayout {
  int n_groups = 0;
  int n_params = 0;

  // The parameters of a block.
  const Half* params(const uint8_t* block) const {
    return reinterpret_cast<const Half*>(block + code_bytes());
  }
  size_t code_bytes() const { return static_cast<size_t>(n_groups) * kGroupBytes; }
  size_t bytes() const { return code_bytes() + static_cast<size_t>(n_params) * sizeof(Half); }
};

inline constexpr int kRefinedTokens = 16;  // of a block: a quarter, so four nibbles fit into one plane

// A run of nibbles that share what scales them: nothing (the tables say it all, or hold the block's
// own parameters), or two parameters of each token, x = zero[t] + scale[t] * table.
//
// A refinement holds nibbles of refined tokens alone (Codec::refined): slot 16 * quarter + i of its
// nibbles is of the i-th refined token. It adds to those the products with their scales, no zeros.
struct Segment {
  int group_begin = 0, group_end = 0;
  int sum_begin = 0, sum_end = 0;      // of its values
  int coord_begin = 0, coord_end = 0;  // coded coordinates this segment covers
  int token_params = -1;  // offset in halves of scale[64], zero[64] within the parameters, or -1
  int quarter = -1;       // 0..3 of a refinement, or -1
  int half_begin = 0;     // of linear keys

  int n_groups() const { return group_end - group_begin; }
  // Halves of four groups stand together, A of each and then B of each; the last four may be short.
  int half_end() const { return half_begin + (n_groups() + 3) / 4 * 8; }
  int half_index(int group, int half) const {
    const int g = group - group_begin;
    return half_begin + g / 4 * 8 + half * 4 + g % 4;
  }
};

// What makes up the coordinates of values: sum i adds scale[i] * x_i to coordinate coord[i],
//   x_i = table_i0[n of group[i][0]] + table_i1[n of group[i][1]], |x_i| <= 127,
// or the first of the two alone, where group[i][1] is -1 and its table zeros.
struct ValueSums {
  std::vector<int> group;     // [n][2]
  std::vector<int> coord;     // [n]
  std::vector<float> scale;   // [n]
  std::vector<int8_t> table;  // [n][2][16]

  size_t n() const { return coord.size(); }
  // Adds scale * table[n of group] to a coordinate: joins a sum that is there, where that is exact.
  void add(int group, int coord, float scale, std::span<const int8_t, 16> table);
};

// Codes one head's keys or values and says how they are read. Immutable and thread-safe.
class Codec {
 public:
  virtual ~Codec() = default;

  virtual int head_dim() const = 0;
  virtual const BlockLayout& layout() const = 0;
  virtual std::span<const Segment> segments() const = 0;

  // Codes rows [64][head_dim]. Bit t of valid says that row t is to be coded; the others are not
  // looked at and get nibbles 0. Non-finite elements are clamped to the range of f16, NaN to 0.
  // block: layout().bytes() bytes. Cost: O(64 * head_dim * (1 + side rank)).
  virtual void encode(const float* rows, uint64_t valid, uint8_t* block) const = 0;

  // Whether the codec has encode() told how much attention was paid to each token.
  virtual bool wants_paid() const { return false; }
  // encode() for these: paid [64], at least 0, is the sum over queries of p^2.
  virtual void encode_paid(const float* rows, uint64_t valid, const float* /*paid*/,
                           uint8_t* block) const {
    encode(rows, valid, block);
  }

  // The same for rows that decode() gave, possibly rounded to f16 since: finds their codes again
  // where encode() would quantise the quantised. All rows must have been of one block.
  virtual void reencode(const float* rows, uint64_t valid, uint8_t* block) const {
    encode(rows, valid, block);
  }

  // The row [head_dim] that token t of a block stands for.
  virtual void decode(const uint8_t* block, int t, float* row) const = 0;

  // --- Keys are read through scores:
  //   q.k(t) = shared + constant + sum_s ( scale_s(t) * sum_g T_g[n_g(t)] + zero_s(t) * Z_s ).
  // scale_s and zero_s are 1 and 0 for segments without token parameters. T_g is either a table of the
  // query that holds for all blocks, or linear in the halves of the nibble, with factors of the block.

  // Analyses a query [head_dim] (already times the logit scale) into coef [n_coef()] and
  // zero_coef [segments] (Z_s); returns the part of the score that all coded tokens share.
  virtual int n_coef() const { return 0; }
  virtual float analyse(const float* /*q*/, float* /*coef*/, float* /*zero_coef*/) const { return 0.0f; }

  virtual bool is_linear() const { return false; }

  // Tables: T_g[n] = sum over the terms i of group g of c_i * pattern_i[n]; the constant is 0.
  virtual std::span<const int> term_begin() const { return {}; }  // [n_groups + 1]
  virtual std::span<const float> patterns() const { return {}; }  // [n_terms][16]
  virtual void term_coefficients(const float* /*coef*/, float* /*c*/) const {}
  // Standard deviation to expect of the error of a query's scores; 0 where it is not known.
  virtual float score_error(const float* /*coef*/) const { return 0.0f; }

  // Linear: T_g[n] = A_g (n & 3) + B_g (n >> 2). A and B are products of a query's halves and a block's
  // factors, both [n_halves()] in the order of half_index(), and the constant is coef . zeros.
  int n_halves() const { return segments().empty() ? 0 : segments().back().half_end(); }
  virtual void spread(const float* /*coef*/, float* /*halves*/) const {}
  // params: the block's parameters as f32 [layout().n_params]; zeros [n_coef()].
  virtual void block_factors(const float* /*params*/, float* /*factors*/, float* /*zeros*/) const {}

  // --- Values are read through a weighted sum:
  //   sum_t p_t v(t) = S(acc),
  //   acc[c] = sum_t p_t (zero_s(t) + scale_s(t) * sum over the sums i of c of scale_i * x_i(t)).

  // Bit t: token t has nibbles in the refinements, at most kRefinedTokens of them.
  virtual uint64_t refined(const uint8_t* /*block*/) const { return 0; }

  virtual const ValueSums& sums() const = 0;
  virtual std::span<const int> coord_order() const = 0;  // what the segments' ranges index
  virtual int n_coords() const = 0;
  // out [head_dim] += S(acc), acc [n_coords()].
  virtual void synthesise(const float* acc, float* out) const = 0;

  // --- For many queries both are cheaper by way of the coded coordinates themselves,
  // y [max(n_coef(), n_coords())][64]:
  //   q.k(t) = shared + sum_{c < n_coef} coef_c y_c(t),   sum_t p_t v(t) = S(sum_t p_t y(t)).
  virtual void coordinates(const uint8_t* block, float* y) const = 0;
};

// Makes the codec of one head; null for a dense spec. head is null without a profile.
// Throws Error(kInvalidArgument) when the spec needs a profile and there is none.
// layer and head_index only diversify the seed of a random basis.
std::unique_ptr<Codec> make_key_codec(const CodecSpec& spec, int head_dim,
                                      const HeadProfile* head, int layer, int head_index);
std::unique_ptr<Codec> make_value_codec(const CodecSpec& spec, int head_dim,
                                        const HeadProfile* head);

}  // namespace headq
