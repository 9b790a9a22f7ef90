#include "codec/scalar_codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "codec/min_max.h"
#include "codec/nibbles.h"
#include "codec/transform.h"

namespace headq {
namespace {

}  // namespace

ScalarCodec::ScalarCodec(Config config) : config_(std::move(config)), kernels_(&codec_kernels()) {
  coords_.resize(static_cast<size_t>(n_coef()));
  const int d = config_.head_dim;
  const int group = config_.token_params ? config_.group_channels : d;
  for (int begin = 0; begin < d; begin += group) {
    std::vector<int> channels(static_cast<size_t>(std::min(group, d - begin)));
    std::iota(channels.begin(), channels.end(), begin);
    const bool halves = config_.bits == 3;
    const Widths widths = {.narrow = halves ? 2 : config_.bits,
                           .n_wide = (halves ? channels.size() / 2 : 0) +
                                     static_cast<size_t>(config_.wide)};
    if (widths.n_wide > 0) {
      std::stable_sort(channels.begin(), channels.end(), [this](int a, int b) {
        return config_.energy[static_cast<size_t>(a)] > config_.energy[static_cast<size_t>(b)];
      });
    }
    plan_segment(channels, widths, config_.token_params);
  }
  if (config_.side_rank > 0) {
    std::vector<int> side(static_cast<size_t>(config_.side_rank));
    std::iota(side.begin(), side.end(), d);
    plan_segment(side, {}, false);
  }
  finish_plan();
}

// Appends a segment: gives each coordinate its width, nibble and parameters.
void ScalarCodec::plan_segment(const std::vector<int>& list, const Widths& widths,
                               bool token_params) {
  // A token's two parameters hold for all of its channels, so narrow ones take every few steps.
  const int shared_levels = (1 << (widths.n_wide > 0 ? 2 * widths.narrow : widths.narrow)) - 1;
  Segment segment{.group_begin = layout_.n_groups,
                  .sum_begin = static_cast<int>(slots_.size()),
                  .coord_begin = static_cast<int>(order_.size())};
  bool half_used = false;
  for (size_t i = 0; i < list.size(); ++i) {
    Coord& coord = coords_[static_cast<size_t>(list[i])];
    coord.width = i < widths.n_wide ? 2 * widths.narrow : widths.narrow;
    const int own_levels = (1 << coord.width) - 1;
    coord.levels = token_params ? shared_levels : own_levels;
    coord.step = coord.levels / own_levels;
    if (!token_params) {
      coord.param = layout_.n_params + static_cast<int>(i);
      coord.zero_param = coord.param + static_cast<int>(list.size());
    }
    place(list[i], half_used);
    order_.push_back(list[i]);
  }
  if (token_params) segment.token_params = layout_.n_params;
  layout_.n_params += 2 * (token_params ? kBlockTokens : static_cast<int>(list.size()));
  segment.group_end = layout_.n_groups;
  segment.sum_end = static_cast<int>(slots_.size());
  segment.coord_end = static_cast<int>(order_.size());
  segments_.push_back(segment);
}

// half_used: the last nibble has room for one more coordinate of 2 bits.
void ScalarCodec::place(int index, bool& half_used) {
  Coord& coord = coords_[static_cast<size_t>(index)];
  coord.first_slot = static_cast<int>(slots_.size());
  if (coord.width == 2 && half_used) {
    slots_.push_back({index, layout_.n_groups - 1, 2, 2, 1});
    half_used = false;
    return;
  }
  const int bits = std::min(coord.width, 4);
  if (coord.width == 8) slots_.push_back({index, layout_.n_groups++, 0, bits, 16});
  slots_.push_back({index, layout_.n_groups++, 0, bits, 1});
  half_used = coord.width == 2;
}

void ScalarCodec::finish_plan() {
  for (const Slot& slot : slots_) {
    const Coord& coord = coords_[static_cast<size_t>(slot.coord)];
    std::array<int8_t, 16> table;
    for (int n = 0; n < 16; ++n) table[static_cast<size_t>(n)] = static_cast<int8_t>(slot.entry(n));
    sums_.add(slot.group, slot.coord, static_cast<float>(slot.mult * coord.step), table);
  }
  for (Segment& segment : segments_) {
    segment.half_begin = static_cast<int>(half_coord_.size());
    const size_t end = static_cast<size_t>(segment.half_end());
    half_coord_.resize(end, 0);
    half_param_.resize(end, 0);
    half_factor_.resize(end, 0.0f);
    for (int i = segment.sum_begin; i < segment.sum_end; ++i) {
      const Slot& slot = slots_[static_cast<size_t>(i)];
      const Coord& coord = coords_[static_cast<size_t>(slot.coord)];
      for (int half = 0; half < 2; ++half) {
        const int unit = slot.entry(half == 0 ? 1 : 4);
        if (unit == 0) continue;
        const size_t at = static_cast<size_t>(segment.half_index(slot.group, half));
        half_coord_[at] = slot.coord;
        half_param_[at] = std::max(coord.param, 0);
        half_factor_[at] = static_cast<float>(unit * slot.mult * coord.step);
      }
    }
  }
  in_order_ = std::is_sorted(order_.begin(), order_.end());
}

// Coordinates 0..d-1 of every valid row: [64][n_coef()], zeros elsewhere.
std::vector<float> ScalarCodec::analysed_rows(const float* rows, uint64_t valid) const {
  const int d = config_.head_dim;
  std::vector<float> x(static_cast<size_t>(kBlockTokens) * static_cast<size_t>(n_coef()), 0.0f);
  for (int t = 0; t < kBlockTokens; ++t) {
    if ((valid >> t & 1) == 0) continue;
    float* y = x.data() + t * n_coef();
    for (int c = 0; c < d; ++c) y[c] = finite_half(rows[t * d + c]);
    if (!config_.mean.empty()) {
      for (int c = 0; c < d; ++c) y[c] -= config_.mean[static_cast<size_t>(c)];
    }
    if (config_.hadamard) hadamard(y, d);
  }
  return x;
}

// Writes the code of one coordinate and replaces x by the value that the code stands for.
void ScalarCodec::code_value(int index, int t, float zero, float scale, float* x,
                             uint8_t* codes) const {
  const Coord& coord = coords_[static_cast<size_t>(index)];
  const float unit = scale * static_cast<float>(coord.step);
  const int code = min_max_code(*x, zero, unit, coord.levels / coord.step);
  int rest = code;
  for (int s = coord.first_slot; rest != 0; ++s) {
    const Slot& slot = slots_[static_cast<size_t>(s)];
    put_nibble(codes, slot.group, t, (rest / slot.mult) << slot.shift);
    rest %= slot.mult;
  }
  *x = zero + unit * static_cast<float>(code);
}

// Quantises the coordinates of a segment in x [64][n_coef()] and leaves their coded values there.
void ScalarCodec::code_segment(const Segment& segment, uint64_t valid, std::vector<float>& x,
                               uint8_t* codes, Half* params) const {
  const auto value = [&](int t, int coord) -> float& {
    return x[static_cast<size_t>(t * n_coef() + coord)];
  };
  const std::span<const int> list(order_.data() + segment.coord_begin,
                                  order_.data() + segment.coord_end);
  const auto is_valid = [valid](int t) { return (valid >> t & 1) != 0; };
  if (segment.token_params >= 0) {
    const int levels = coords_[static_cast<size_t>(list[0])].levels;
    for (int t = 0; t < kBlockTokens; ++t) {
      if (!is_valid(t)) continue;
      Range range;
      for (int c : list) range.add(value(t, c));
      const MinMax stored(range, levels);
      params[segment.token_params + t] = stored.scale;
      params[segment.token_params + kBlockTokens + t] = stored.zero;
      const float zero = half_to_float(stored.zero);
      const float scale = half_to_float(stored.scale);
      for (int c : list) code_value(c, t, zero, scale, &value(t, c), codes);
    }
    return;
  }
  for (int c : list) {
    const Coord& coord = coords_[static_cast<size_t>(c)];
    Range range;
    for (int t = 0; t < kBlockTokens; ++t) {
      if (is_valid(t)) range.add(value(t, c));
    }
    const MinMax stored(range, coord.levels);
    params[coord.param] = stored.scale;
    params[coord.zero_param] = stored.zero;
    const float zero = half_to_float(stored.zero);
    const float scale = half_to_float(stored.scale);
    for (int t = 0; t < kBlockTokens; ++t) {
      if (is_valid(t)) code_value(c, t, zero, scale, &value(t, c), codes);
    }
  }
}

// Codes the base of every valid row; returns the coded coordinates, [64][n_coef()].
std::vector<float> ScalarCodec::code_base(const float* rows, uint64_t valid, uint8_t* block) const {
  std::fill_n(block, layout_.bytes(), uint8_t{0});
  Half* params = reinterpret_cast<Half*>(block + layout_.code_bytes());
  std::vector<float> x = analysed_rows(rows, valid);
  const size_t n_base = segments_.size() - (config_.side_rank > 0 ? 1 : 0);
  for (size_t s = 0; s < n_base; ++s) code_segment(segments_[s], valid, x, block, params);
  return x;
}

// Codes z = sign U^T (k - k^) like any other coordinates; k^ is the base's row for x.
void ScalarCodec::code_side(const float* rows, uint64_t valid, float sign, std::vector<float>& x,
                            uint8_t* block) const {
  const int d = config_.head_dim;
  std::vector<float> coded(static_cast<size_t>(d));
  for (int t = 0; t < kBlockTokens; ++t) {
    if ((valid >> t & 1) == 0) continue;
    float* y = x.data() + t * n_coef();
    synthesise_row(y, coded.data());
    for (int j = 0; j < config_.side_rank; ++j) {
      const float* u = config_.side_basis.data() + j * d;
      float z = 0.0f;
      for (int c = 0; c < d; ++c) {
        z += u[c] * (finite_half(rows[t * d + c]) - coded[static_cast<size_t>(c)]);
      }
      y[d + j] = sign * z;
    }
  }
  Half* params = reinterpret_cast<Half*>(block + layout_.code_bytes());
  code_segment(segments_.back(), valid, x, block, params);
}

void ScalarCodec::encode(const float* rows, uint64_t valid, uint8_t* block) const {
  std::vector<float> x = code_base(rows, valid, block);
  if (config_.side_rank > 0) code_side(rows, valid, 1.0f, x, block);
}

// A decoded row is k^ + sign U z, and k^ alone lies on the base's grid. Alternately takes off the
// side code found so far and codes the base of the rest, until the codes stand.
void ScalarCodec::reencode(const float* rows, uint64_t valid, uint8_t* block) const {
  constexpr int kMaxPasses = 16;
  if (config_.side_rank == 0) return encode(rows, valid, block);
  const int d = config_.head_dim;
  const float sign = static_cast<float>(config_.side_sign);
  std::vector<float> x = code_base(rows, valid, block);
  code_side(rows, valid, sign, x, block);
  std::vector<float> rest(static_cast<size_t>(kBlockTokens * d));
  for (int pass = 0; pass < kMaxPasses; ++pass) {
    const std::vector<uint8_t> before(block, block + layout_.bytes());
    for (int t = 0; t < kBlockTokens; ++t) {
      if ((valid >> t & 1) == 0) continue;
      float* row = rest.data() + t * d;
      for (int c = 0; c < d; ++c) row[c] = finite_half(rows[t * d + c]);
      for (int j = 0; j < config_.side_rank; ++j) {
        const float* u = config_.side_basis.data() + j * d;
        const float z = sign * x[static_cast<size_t>(t * n_coef() + d + j)];
        for (int c = 0; c < d; ++c) row[c] -= z * u[c];
      }
    }
    x = code_base(rest.data(), valid, block);
    code_side(rows, valid, sign, x, block);
    if (std::equal(before.begin(), before.end(), block)) return;
  }
}

// The base's row for coded coordinates x: back through the Hadamard transform, mean put back.
void ScalarCodec::synthesise_row(const float* x, float* row) const {
  const int d = config_.head_dim;
  std::copy_n(x, d, row);
  if (config_.hadamard) hadamard(row, d);
  if (!config_.mean.empty()) {
    for (int c = 0; c < d; ++c) row[c] += config_.mean[static_cast<size_t>(c)];
  }
}

int ScalarCodec::code_of(const Coord& coord, const uint8_t* codes, int t) const {
  int code = 0;
  int slot_index = coord.first_slot;
  for (int bits = 0; bits < coord.width; ++slot_index) {
    const Slot& slot = slots_[static_cast<size_t>(slot_index)];
    const int nibble = get_nibble(codes, slot.group, t);
    code += slot.mult * ((nibble >> slot.shift) & ((1 << slot.bits) - 1));
    bits += slot.bits;
  }
  return code;
}

void ScalarCodec::decode(const uint8_t* block, int t, float* row) const {
  const int d = config_.head_dim;
  const Half* params = layout_.params(block);
  float x[kMaxHeadDim + kMaxSideRank];
  for (const Segment& segment : segments_) {
    for (int i = segment.coord_begin; i < segment.coord_end; ++i) {
      const int c = order_[static_cast<size_t>(i)];
      const Coord& coord = coords_[static_cast<size_t>(c)];
      const bool own = coord.param >= 0;
      const float scale = half_to_float(params[own ? coord.param : segment.token_params + t]);
      const float zero =
          half_to_float(params[own ? coord.zero_param : segment.token_params + kBlockTokens + t]);
      x[c] = zero + scale * static_cast<float>(coord.step * code_of(coord, block, t));
    }
  }
  synthesise_row(x, row);
  for (int j = 0; j < config_.side_rank; ++j) {
    const float* u = config_.side_basis.data() + j * d;
    const float z = static_cast<float>(config_.side_sign) * x[d + j];
    for (int c = 0; c < d; ++c) row[c] += z * u[c];
  }
}

float ScalarCodec::analyse(const float* q, float* coef, float* zero_coef) const {
  const int d = config_.head_dim;
  float shared = 0.0f;
  std::copy_n(q, d, coef);
  if (!config_.mean.empty()) {
    for (int c = 0; c < d; ++c) shared += q[c] * config_.mean[static_cast<size_t>(c)];
  }
  if (config_.hadamard) hadamard(coef, d);
  for (int j = 0; j < config_.side_rank; ++j) {
    const float* u = config_.side_basis.data() + j * d;
    float projection = 0.0f;
    for (int c = 0; c < d; ++c) projection += q[c] * u[c];
    coef[d + j] = static_cast<float>(config_.side_sign) * projection;
  }
  for (size_t s = 0; s < segments_.size(); ++s) {
    zero_coef[s] = 0.0f;
    if (segments_[s].token_params < 0) continue;
    for (int i = segments_[s].coord_begin; i < segments_[s].coord_end; ++i) {
      zero_coef[s] += coef[order_[static_cast<size_t>(i)]];
    }
  }
  return shared;
}

void ScalarCodec::spread(const float* coef, float* halves) const {
  for (size_t i = 0; i < half_coord_.size(); ++i) halves[i] = coef[half_coord_[i]];
}

void ScalarCodec::block_factors(const float* params, float* factors, float* zeros) const {
  for (const Segment& segment : segments_) {
    const int n_coords = segment.coord_end - segment.coord_begin;
    if (segment.token_params >= 0) {
      const float* from = half_factor_.data() + segment.half_begin;
      std::copy_n(from, segment.half_end() - segment.half_begin, factors + segment.half_begin);
      for (int i = 0; i < n_coords; ++i) zeros[order_[static_cast<size_t>(segment.coord_begin + i)]] = 0.0f;
      continue;
    }
    for (size_t i = static_cast<size_t>(segment.half_begin); i < static_cast<size_t>(segment.half_end()); ++i) {
      factors[i] = half_factor_[i] * params[half_param_[i]];
    }
    const int* list = order_.data() + segment.coord_begin;
    const float* zero = params + coords_[static_cast<size_t>(*list)].zero_param;
    if (in_order_) {
      std::copy_n(zero, n_coords, zeros + *list);
    } else {
      for (int i = 0; i < n_coords; ++i) zeros[list[i]] = zero[i];
    }
  }
}

void ScalarCodec::synthesise(const float* acc, float* out) const {
  const int d = config_.head_dim;
  float row[kMaxHeadDim];
  synthesise_row(acc, row);
  for (int c = 0; c < d; ++c) out[c] += row[c];
}

void ScalarCodec::coordinates(const uint8_t* block, float* y) const {
  const Half* params = layout_.params(block);
  for (const Segment& segment : segments_) {
    for (int i = segment.coord_begin; i < segment.coord_end; ++i) {
      const int c = order_[static_cast<size_t>(i)];
      const int zero = coords_[static_cast<size_t>(c)].zero_param;
      std::fill_n(y + c * kBlockTokens, kBlockTokens, zero >= 0 ? half_to_float(params[zero]) : 0.0f);
    }
    for (int i = segment.sum_begin; i < segment.sum_end; ++i) {
      const size_t slot = static_cast<size_t>(i);
      const int c = slots_[slot].coord;
      const int param = coords_[static_cast<size_t>(c)].param;
      const float factor = static_cast<float>(slots_[slot].mult * coords_[static_cast<size_t>(c)].step);
      const float unit = factor * (param >= 0 ? half_to_float(params[param]) : 1.0f);
      float table[16];
      for (int n = 0; n < 16; ++n) table[n] = unit * static_cast<float>(slots_[slot].entry(n));
      kernels_->add_lookups(block + slots_[slot].group * kGroupBytes, table, y + c * kBlockTokens);
    }
    if (segment.token_params < 0) continue;
    float scale[kBlockTokens], zero[kBlockTokens];
    for (int t = 0; t < kBlockTokens; ++t) {
      scale[t] = half_to_float(params[segment.token_params + t]);
      zero[t] = half_to_float(params[segment.token_params + kBlockTokens + t]);
    }
    for (int i = segment.coord_begin; i < segment.coord_end; ++i) {
      float* row = y + order_[static_cast<size_t>(i)] * kBlockTokens;
      for (int t = 0; t < kBlockTokens; ++t) row[t] = zero[t] + scale[t] * row[t];
    }
  }
}

}  // namespace headq
