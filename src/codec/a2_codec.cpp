#include "codec/a2_codec.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <numeric>

#include "codec/min_max.h"
#include "codec/nibbles.h"
#include "core/random.h"

namespace headq {
namespace {

constexpr int kChannels = 64;  // that share a token's scale and zero
constexpr int kQuarters = kBlockTokens / kRefinedTokens;
constexpr int kMaskHalves = kBlockTokens / 16;

using Scores = std::array<float, kBlockTokens>;

bool has(uint64_t mask, int t) { return (mask >> t & 1) != 0; }

// The tokens of `valid` with the highest scores, at most kRefinedTokens; the first of equals.
uint64_t highest(const Scores& scores, uint64_t valid) {
  std::array<int, kBlockTokens> tokens;
  std::iota(tokens.begin(), tokens.end(), 0);
  const auto end = std::partition(tokens.begin(), tokens.end(), [&](int t) { return has(valid, t); });
  std::sort(tokens.begin(), end, [&](int a, int b) {
    const float x = scores[static_cast<size_t>(a)], y = scores[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  });
  uint64_t out = 0;
  for (auto at = tokens.begin(); at != end && at != tokens.begin() + kRefinedTokens; ++at) {
    out |= uint64_t{1} << *at;
  }
  return out;
}

// Which slot of a quarter is the refined token's.
int rank_of(uint64_t refined, int t) { return std::popcount(refined & ((uint64_t{1} << t) - 1)); }

}  // namespace

A2Codec::A2Codec(int head_dim, TokenChoice choice, uint64_t seed)
    : head_dim_(head_dim), choice_(choice), seed_(seed), kernels_(&codec_kernels()) {
  for (int begin = 0; begin < head_dim; begin += kChannels) {
    Part part{.begin = begin, .end = std::min(begin + kChannels, head_dim), .planes = layout_.n_groups,
              .params = layout_.n_params};
    layout_.n_groups += (part.end - part.begin + 1) / 2;
    layout_.n_params += 2 * kBlockTokens;
    parts_.push_back(part);
  }
  for (Part& part : parts_) {
    part.refined = layout_.n_groups;
    const int n_nibbles = (part.end - part.begin + 1) / 2;
    layout_.n_groups += (n_nibbles + kQuarters - 1) / kQuarters;
  }
  mask_param_ = layout_.n_params;
  layout_.n_params += kMaskHalves;
  order_.resize(static_cast<size_t>(head_dim));
  std::iota(order_.begin(), order_.end(), 0);
  for (const Part& part : parts_) {
    for (int quarter = -1; quarter < kQuarters; ++quarter) add_terms(part, quarter);
  }
}

// Appends a segment: a part's high bits (quarter -1), or a quarter of its low bits.
void A2Codec::add_terms(const Part& part, int quarter) {
  const bool high = quarter < 0;
  const int n_nibbles = (part.end - part.begin + 1) / 2;
  Segment segment{.group_begin = high ? part.planes : part.refined,
                  .sum_begin = static_cast<int>(sums_.n()),
                  .coord_begin = part.begin,
                  .coord_end = part.end,
                  .token_params = part.params,
                  .quarter = quarter};
  segment.group_end = segment.group_begin + (high ? n_nibbles : (n_nibbles + kQuarters - 1) / kQuarters);
  for (int c = part.begin; c < part.end; ++c) {
    const int nibble = part.nibble_of(c);
    if (!high && nibble % kQuarters != quarter) continue;
    const int shift = (c - part.begin) % 2 * 2;
    std::array<int8_t, 16> table;
    for (size_t n = 0; n < table.size(); ++n) table[n] = static_cast<int8_t>(n >> shift & 3);
    sums_.add(segment.group_begin + (high ? nibble : nibble / kQuarters), c, high ? 1.0f : 0.25f, table);
  }
  segment.sum_end = static_cast<int>(sums_.n());
  if (segment.sum_end > segment.sum_begin) segments_.push_back(segment);
}

void A2Codec::encode_refined(const float* rows, uint64_t valid, uint64_t refined,
                             uint8_t* block) const {
  std::fill_n(block, layout_.bytes(), uint8_t{0});
  Half* params = reinterpret_cast<Half*>(block + layout_.code_bytes());
  std::memcpy(params + mask_param_, &refined, sizeof(refined));
  for (const Part& part : parts_) {
    for (int t = 0; t < kBlockTokens; ++t) {
      if (!has(valid, t)) continue;
      const float* row = rows + t * head_dim_;
      Range range;
      for (int c = part.begin; c < part.end; ++c) range.add(finite_half(row[c]));
      // Three steps of the scale, or fifteen of a quarter of it.
      const bool fine = has(refined, t);
      MinMax stored(range, fine ? 15 : 3);
      if (fine) stored.scale = float_to_half(4.0f * half_to_float(stored.scale));
      params[part.params + t] = stored.scale;
      params[part.params + kBlockTokens + t] = stored.zero;
      const float zero = half_to_float(stored.zero), scale = half_to_float(stored.scale);
      for (int c = part.begin; c < part.end; ++c) {
        const float x = finite_half(row[c]);
        const int nibble = part.nibble_of(c), shift = (c - part.begin) % 2 * 2;
        if (!fine) {
          put_nibble(block, part.planes + nibble, t, min_max_code(x, zero, scale, 3) << shift);
          continue;
        }
        const int code = min_max_code(x, zero, 0.25f * scale, 15);
        put_nibble(block, part.planes + nibble, t, (code >> 2) << shift);
        put_nibble(block, part.refined + nibble / kQuarters,
                   nibble % kQuarters * kRefinedTokens + rank_of(refined, t), (code & 3) << shift);
      }
    }
  }
}

void A2Codec::encode(const float* rows, uint64_t valid, uint8_t* block) const {
  if (choice_ != TokenChoice::kRandom) return reencode(rows, valid, block);
  // Other tokens in every block, but the same for the same rows.
  uint64_t hash = seed_;
  for (int t = 0; t < kBlockTokens; ++t) {
    if (has(valid, t)) hash = Random(hash ^ std::bit_cast<uint32_t>(rows[t * head_dim_])).next();
  }
  Random random(hash);
  Scores scores;
  for (float& score : scores) score = static_cast<float>(random.uniform());
  encode_refined(rows, valid, highest(scores, valid), block);
}

void A2Codec::encode_paid(const float* rows, uint64_t valid, const float* paid, uint8_t* block) const {
  if (!wants_paid()) return encode(rows, valid, block);
  Scores scores;
  for (size_t t = 0; t < scores.size(); ++t) scores[t] = paid[t] > 0.0f ? paid[t] : 0.0f;  // NaN: 0
  encode_refined(rows, valid, highest(scores, valid), block);
}

void A2Codec::reencode(const float* rows, uint64_t valid, uint8_t* block) const {
  Scores scores = {};
  for (const Part& part : parts_) {
    for (int t = 0; t < kBlockTokens; ++t) {
      if (!has(valid, t)) continue;
      const float* row = rows + t * head_dim_;
      Range range;
      for (int c = part.begin; c < part.end; ++c) range.add(finite_half(row[c]));
      const MinMax coarse(range, 3);
      const float zero = half_to_float(coarse.zero), scale = half_to_float(coarse.scale);
      if (!(scale > 0.0f)) continue;
      for (int c = part.begin; c < part.end; ++c) {
        const float x = finite_half(row[c]);
        const float off = (x - zero) / scale - static_cast<float>(min_max_code(x, zero, scale, 3));
        scores[static_cast<size_t>(t)] += off * off;
      }
    }
  }
  encode_refined(rows, valid, highest(scores, valid), block);
}

uint64_t A2Codec::refined(const uint8_t* block) const {
  uint64_t out = 0;
  std::memcpy(&out, layout_.params(block) + mask_param_, sizeof(out));
  return out;
}

void A2Codec::decode(const uint8_t* block, int t, float* row) const {
  const Half* params = layout_.params(block);
  const uint64_t fine = refined(block);
  for (const Part& part : parts_) {
    const float scale = half_to_float(params[part.params + t]);
    const float zero = half_to_float(params[part.params + kBlockTokens + t]);
    for (int c = part.begin; c < part.end; ++c) {
      const int nibble = part.nibble_of(c), shift = (c - part.begin) % 2 * 2;
      int code = 4 * (get_nibble(block, part.planes + nibble, t) >> shift & 3);
      if (has(fine, t)) {
        const int slot = nibble % kQuarters * kRefinedTokens + rank_of(fine, t);
        code += get_nibble(block, part.refined + nibble / kQuarters, slot) >> shift & 3;
      }
      row[c] = zero + scale * (0.25f * static_cast<float>(code));
    }
  }
}

void A2Codec::synthesise(const float* acc, float* out) const {
  for (int c = 0; c < head_dim_; ++c) out[c] += acc[c];
}

void A2Codec::coordinates(const uint8_t* block, float* y) const {
  const Half* params = layout_.params(block);
  const uint64_t fine = refined(block);
  std::fill_n(y, head_dim_ * kBlockTokens, 0.0f);
  for (const Segment& segment : segments_) {
    for (int i = segment.sum_begin; i < segment.sum_end; ++i) {
      const size_t sum = static_cast<size_t>(i);
      const int group = sums_.group[2 * sum];
      float* out = y + sums_.coord[sum] * kBlockTokens;
      float table[16];
      for (size_t n = 0; n < 16; ++n) {
        table[n] = sums_.scale[sum] * static_cast<float>(sums_.table[sum * 32 + n]);
      }
      if (segment.quarter < 0) {
        kernels_->add_lookups(block + group * kGroupBytes, table, out);
        continue;
      }
      int slot = segment.quarter * kRefinedTokens;
      for (uint64_t rest = fine; rest != 0; rest &= rest - 1, ++slot) {
        out[std::countr_zero(rest)] += table[get_nibble(block, group, slot)];
      }
    }
  }
  for (const Part& part : parts_) {
    for (int t = 0; t < kBlockTokens; ++t) {
      const float scale = half_to_float(params[part.params + t]);
      const float zero = half_to_float(params[part.params + kBlockTokens + t]);
      for (int c = part.begin; c < part.end; ++c) {
        float& x = y[c * kBlockTokens + t];
        x = zero + scale * x;
      }
    }
  }
}

}  // namespace headq
