#pragma once

#include <vector>

#include "codec/codec.h"
#include "codec/codec_kernels.h"

namespace headq {

// kivi2 values of which kRefinedTokens tokens of a block have 4 bits: the bits where the attention is.
//
// The error of a value enters the output of its head as p_j e_j, so a token counts by the sum of p_j^2
// over queries (A^2). Every token has 2 bits and, for each 64 channels, an f16 scale and zero; those
// of a refined token are of a grid of 16 steps, whose two low bits lie in the refinement:
//   x = zero + scale * (high + low / 4).
// A block is the planes of the high bits, the planes of the low bits (Segment::quarter), scales and
// zeros as kivi2 has them, and 64 bits that say which tokens are refined: 2.5 + 0.516 bits an element
// for 64 channels. For values only: there are no tables for scores.
class A2Codec : public Codec {
 public:
  // seed: of TokenChoice::kRandom.
  A2Codec(int head_dim, TokenChoice choice, uint64_t seed);

  int head_dim() const override { return head_dim_; }
  const BlockLayout& layout() const override { return layout_; }
  std::span<const Segment> segments() const override { return segments_; }

  // encode() of TokenChoice::kPaid knows nothing of attention and does what reencode() does.
  void encode(const float* rows, uint64_t valid, uint8_t* block) const override;
  bool wants_paid() const override { return choice_ == TokenChoice::kPaid; }
  void encode_paid(const float* rows, uint64_t valid, const float* paid, uint8_t* block) const override;
  // Refines the rows that are farthest from a grid of 4 steps, which those with 2 bits lie on.
  void reencode(const float* rows, uint64_t valid, uint8_t* block) const override;
  void decode(const uint8_t* block, int t, float* row) const override;
  uint64_t refined(const uint8_t* block) const override;

  // The rows with exactly these tokens refined, at most kRefinedTokens.
  void encode_refined(const float* rows, uint64_t valid, uint64_t refined, uint8_t* block) const;

  const ValueSums& sums() const override { return sums_; }
  std::span<const int> coord_order() const override { return order_; }
  int n_coords() const override { return head_dim_; }
  void synthesise(const float* acc, float* out) const override;
  void coordinates(const uint8_t* block, float* y) const override;

 private:
  // Channels that share a token's scale and zero.
  struct Part {
    int begin = 0, end = 0;
    int planes = 0;   // where its nibbles begin
    int refined = 0;  // where its refinement begins
    int params = 0;   // scale[64], zero[64]

    int nibble_of(int channel) const { return (channel - begin) / 2; }
  };

  void add_terms(const Part& part, int quarter);

  int head_dim_;
  TokenChoice choice_;
  uint64_t seed_;
  const CodecKernels* kernels_;
  BlockLayout layout_;
  int mask_param_ = 0;  // four halves of params that hold the bits of refined tokens
  std::vector<Part> parts_;
  std::vector<Segment> segments_;
  std::vector<int> order_;
  ValueSums sums_;
};

}  // namespace headq
