#pragma once

#include <vector>

#include "codec/codec.h"
#include "codec/trellis.h"

namespace headq {

// The operator-matched codec (docs/nib.md): a linear transform, then nibbles whose codewords add up.
// A block is nibbles alone, every row is coded by itself, and tables hold for the whole cache.
class NibCodec : public Codec {
 public:
  // wrong_sign: the terms of the last so many nibbles are subtracted when they are read, not added
  // (a control). Throws Error(kInvalidArgument) when the code does not fit head_dim.
  NibCodec(int head_dim, const NibCode& code, int wrong_sign);

  int head_dim() const override { return head_dim_; }
  const BlockLayout& layout() const override { return layout_; }
  std::span<const Segment> segments() const override { return {&segment_, 1}; }
  void encode(const float* rows, uint64_t valid, uint8_t* block) const override;
  void decode(const uint8_t* block, int t, float* row) const override;

  std::span<const int> term_begin() const override { return trellis_.term_begin(); }
  std::span<const float> patterns() const override { return patterns_; }
  int n_coef() const override { return trellis_.n_coords(); }
  float analyse(const float* q, float* coef, float* zero_coef) const override;
  float score_error(const float* coef) const override;
  void term_coefficients(const float* coef, float* c) const override;

  // The last coordinate is the sum of the weights, which the mean is multiplied with.
  const ValueSums& sums() const override { return sums_; }
  std::span<const int> coord_order() const override { return {}; }
  int n_coords() const override { return trellis_.n_coords() + 1; }
  void synthesise(const float* acc, float* out) const override;
  void coordinates(const uint8_t* block, float* y) const override;

 private:
  int head_dim_;
  std::vector<float> mean_;  // [d]
  float coord_error_;        // expected squared error of a coordinate
  Trellis trellis_;
  int coord_stride_, row_stride_;  // n_coords and d, padded to 16
  std::vector<float> analysis_columns_;   // [d][coord_stride]
  std::vector<float> synthesis_columns_;  // [d][coord_stride]
  std::vector<float> synthesis_rows_;     // [n_coords][row_stride]
  std::vector<float> patterns_;  // [n_terms][16] as read
  BlockLayout layout_;
  Segment segment_;
  ValueSums sums_;
};

// The table of a code: scale * codebook, [n_terms][16].
std::vector<float> nib_table(const NibCode& code);

}  // namespace headq
