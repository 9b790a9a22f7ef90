#include "codec/nib_codec.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "codec/dot.h"
#include "codec/nib_file.h"
#include "codec/nibbles.h"
#include "headq/error.h"

namespace headq {
namespace {

const NibCode& checked(const NibCode& code, int head_dim) {
  const std::string why = why_bad_nib(code, head_dim);
  if (why.empty()) return code;
  throw Error(ErrorCode::kInvalidArgument, "the nib code of a head " + why);
}

int padded(int n) { return (n + 15) / 16 * 16; }

// [d][stride], the transpose of rows [n][d], zeros behind n.
std::vector<float> columns_of(const std::vector<float>& rows, int d, int stride) {
  std::vector<float> out(static_cast<size_t>(d * stride), 0.0f);
  const size_t width = static_cast<size_t>(d);
  for (size_t i = 0; i < rows.size(); ++i) {
    out[i % width * static_cast<size_t>(stride) + i / width] = rows[i];
  }
  return out;
}

}  // namespace

std::vector<float> nib_table(const NibCode& code) {
  std::vector<float> table(code.codebook.size());
  for (size_t i = 0; i < table.size(); ++i) {
    table[i] = code.scale[i / 16] * static_cast<float>(code.codebook[i]);
  }
  return table;
}

NibCodec::NibCodec(int head_dim, const NibCode& code, int wrong_sign)
    : head_dim_(head_dim),
      mean_(checked(code, head_dim).mean),
      coord_error_(code.error / static_cast<float>(head_dim)),
      trellis_(code.n_coords(), code.reach, nib_table(code)),
      coord_stride_(padded(trellis_.n_coords())),
      row_stride_(padded(head_dim)),
      analysis_columns_(columns_of(code.analysis, head_dim, coord_stride_)),
      synthesis_columns_(columns_of(code.synthesis, head_dim, coord_stride_)),
      synthesis_rows_(static_cast<size_t>(trellis_.n_coords() * row_stride_), 0.0f) {
  for (int c = 0; c < trellis_.n_coords(); ++c) {
    std::copy_n(code.synthesis.data() + c * head_dim, head_dim,
                synthesis_rows_.data() + c * row_stride_);
  }
  layout_.n_groups = trellis_.n_nibbles();
  const int first_wrong = std::max(layout_.n_groups - wrong_sign, 0);
  for (int g = 0; g < layout_.n_groups; ++g) {
    const float sign = g < first_wrong ? 1.0f : -1.0f;
    const size_t s = static_cast<size_t>(g);
    for (int i = trellis_.term_begin()[s]; i < trellis_.term_begin()[s + 1]; ++i) {
      const size_t term = static_cast<size_t>(i);
      const float scale = sign * code.scale[term];
      const std::span<const int8_t, 16> table(code.codebook.data() + term * 16, 16);
      sums_.add(g, trellis_.coords()[term], scale, table);
      for (int8_t x : table) patterns_.push_back(scale * static_cast<float>(x));
    }
  }
  std::array<int8_t, 16> ones;
  ones.fill(1);
  sums_.add(0, trellis_.n_coords(), 1.0f, ones);
  segment_ = {.group_end = layout_.n_groups,
              .sum_end = static_cast<int>(sums_.n()),
              .coord_end = trellis_.n_coords() + 1};
}

void NibCodec::encode(const float* rows, uint64_t valid, uint8_t* block) const {
  std::fill_n(block, layout_.bytes(), uint8_t{0});
  float x[kMaxHeadDim], y[kMaxHeadDim];
  uint8_t nibbles[kMaxNibbles];
  const TrellisSearch search(trellis_);
  for (int t = 0; t < kBlockTokens; ++t) {
    if ((valid >> t & 1) == 0) continue;
    for (int i = 0; i < head_dim_; ++i) {
      x[i] = finite_half(rows[t * head_dim_ + i]) - mean_[static_cast<size_t>(i)];
    }
    trellis_.kernels().transform(analysis_columns_.data(), head_dim_, coord_stride_, x, y);
    search.encode(y, nibbles);
    for (int g = 0; g < layout_.n_groups; ++g) put_nibble(block, g, t, nibbles[g]);
  }
}

void NibCodec::decode(const uint8_t* block, int t, float* row) const {
  uint8_t nibbles[kMaxNibbles];
  float y[kMaxHeadDim + 1];
  for (int g = 0; g < layout_.n_groups; ++g) {
    nibbles[g] = static_cast<uint8_t>(get_nibble(block, g, t));
  }
  trellis_.decode(nibbles, y);
  y[trellis_.n_coords()] = 1.0f;
  std::fill_n(row, head_dim_, 0.0f);
  synthesise(y, row);
}

float NibCodec::analyse(const float* q, float* coef, float* zero_coef) const {
  zero_coef[0] = 0.0f;
  float padded_coef[kMaxHeadDim];
  trellis_.kernels().transform(synthesis_columns_.data(), head_dim_, coord_stride_, q, padded_coef);
  std::copy_n(padded_coef, trellis_.n_coords(), coef);
  return dot(q, mean_.data(), mean_.size());
}

// Errors of coordinates are uncorrelated, and about alike where bits are spent.
float NibCodec::score_error(const float* coef) const {
  const size_t n = static_cast<size_t>(trellis_.n_coords());
  return std::sqrt(coord_error_ * dot(coef, coef, n));
}

void NibCodec::term_coefficients(const float* coef, float* c) const {
  const std::span<const int> coords = trellis_.coords();
  for (size_t i = 0; i < coords.size(); ++i) c[i] = coef[coords[i]];
}

void NibCodec::synthesise(const float* acc, float* out) const {
  const float weight = acc[trellis_.n_coords()];
  float sum[kMaxHeadDim];
  trellis_.kernels().transform(synthesis_rows_.data(), trellis_.n_coords(), row_stride_, acc, sum);
  for (int i = 0; i < head_dim_; ++i) out[i] += weight * mean_[static_cast<size_t>(i)] + sum[i];
}

void NibCodec::coordinates(const uint8_t* block, float* y) const {
  const int n = trellis_.n_coords();
  std::fill_n(y, n * kBlockTokens, 0.0f);
  std::fill_n(y + n * kBlockTokens, kBlockTokens, 1.0f);
  const std::span<const int> begin = trellis_.term_begin(), coords = trellis_.coords();
  for (int g = 0; g < layout_.n_groups; ++g) {
    for (int i = begin[static_cast<size_t>(g)]; i < begin[static_cast<size_t>(g) + 1]; ++i) {
      trellis_.kernels().add_lookups(block + g * kGroupBytes, patterns_.data() + i * 16,
                                     y + coords[static_cast<size_t>(i)] * kBlockTokens);
    }
  }
}

}  // namespace headq
