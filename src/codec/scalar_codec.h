#pragma once

#include <vector>

#include "codec/codec.h"
#include "codec/codec_kernels.h"

namespace headq {

// Min-max scalar quantization of single coordinates: kivi, token and the low-rank side code.
//
// Coordinates 0..d-1 are the row's channels (after centring and the Hadamard transform where the
// spec has them); d..d+r-1 are the side code's projections of what the base left over, U^T(k - k^).
// A coordinate has 2, 4 or 8 bits. Two of 2 bits share a nibble, 8 bits are a high and a low one.
class ScalarCodec : public Codec {
 public:
  struct Config {
    int head_dim = 0;
    bool token_params = false;  // parameters per token and channel group; else per channel and block
    int group_channels = 64;    // channels that share a token's parameters
    int bits = 2;               // 2, 3, 4, 8; 3: half the channels at 4 bits, half at 2
    int wide = 0;  // channels with twice the bits, beside the half of them that 3 bits mean
    std::vector<float> energy;  // [head_dim] which channels these are, where there are any
    bool hadamard = false;
    std::vector<float> mean;  // [head_dim] or empty
    int side_rank = 0;
    int side_sign = +1;
    std::vector<float> side_basis;  // [side_rank][head_dim], orthonormal rows
  };

  explicit ScalarCodec(Config config);

  int head_dim() const override { return config_.head_dim; }
  const BlockLayout& layout() const override { return layout_; }
  void encode(const float* rows, uint64_t valid, uint8_t* block) const override;
  void reencode(const float* rows, uint64_t valid, uint8_t* block) const override;
  void decode(const uint8_t* block, int t, float* row) const override;

  std::span<const Segment> segments() const override { return segments_; }
  int n_coef() const override { return config_.head_dim + config_.side_rank; }
  float analyse(const float* q, float* coef, float* zero_coef) const override;
  bool is_linear() const override { return true; }
  void spread(const float* coef, float* halves) const override;
  void block_factors(const float* params, float* factors, float* zeros) const override;

  const ValueSums& sums() const override { return sums_; }
  std::span<const int> coord_order() const override { return order_; }
  int n_coords() const override { return config_.head_dim; }
  void synthesise(const float* acc, float* out) const override;
  void coordinates(const uint8_t* block, float* y) const override;

 private:
  // What nibble a coordinate (or half of an 8-bit one) sits in.
  struct Slot {
    int coord = 0;
    int group = 0;
    int shift = 0;  // 0 or 2
    int bits = 4;   // 2 or 4
    int mult = 1;   // code units per unit of this nibble: 16 for the high half of 8 bits

    int entry(int nibble) const { return nibble >> shift & ((1 << bits) - 1); }
  };

  // How a coordinate is coded: x = zero + scale * step * code, code in [0, levels / step].
  struct Coord {
    int width = 0;
    int levels = 0;  // the parameters' range in units of scale
    int step = 1;    // units of scale per code (5 for 2 bits that share a range with 4 bits)
    int first_slot = 0;
    int param = -1;  // offset in halves of its scale in the block; -1 when that is a token's
    int zero_param = -1;
  };

  // Bits of a segment's coordinates: the first n_wide have twice as many as the others.
  struct Widths {
    int narrow = 4;
    size_t n_wide = 0;
  };

  void plan_segment(const std::vector<int>& coords, const Widths& widths, bool token_params);
  void place(int coord, bool& half_used);
  void finish_plan();

  std::vector<float> analysed_rows(const float* rows, uint64_t valid) const;
  std::vector<float> code_base(const float* rows, uint64_t valid, uint8_t* block) const;
  void code_side(const float* rows, uint64_t valid, float sign, std::vector<float>& x,
                 uint8_t* block) const;
  void code_segment(const Segment& segment, uint64_t valid, std::vector<float>& x, uint8_t* codes,
                    Half* params) const;
  void code_value(int coord, int t, float zero, float scale, float* x, uint8_t* codes) const;
  void synthesise_row(const float* x, float* row) const;
  int code_of(const Coord& coord, const uint8_t* codes, int t) const;

  Config config_;
  const CodecKernels* kernels_;
  BlockLayout layout_;
  std::vector<Segment> segments_;
  std::vector<int> order_;  // coordinates as the segments list them
  std::vector<Coord> coords_;
  std::vector<Slot> slots_;
  ValueSums sums_;
  // Halves of nibbles [n_halves()]: the coordinate each is a part of, where its scale is, and how many
  // of these a unit is worth (0: of no coordinate).
  std::vector<int> half_coord_, half_param_;
  std::vector<float> half_factor_;
  bool in_order_ = true;  // segments list coordinates in order
};

}  // namespace headq
