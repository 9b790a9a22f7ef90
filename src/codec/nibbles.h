#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "codec/codec.h"

namespace headq {

// Nibble `group` of token t in a block's codes (BlockLayout), which must be 0 before it is put.
inline void put_nibble(uint8_t* codes, int group, int t, int nibble) {
  codes[group * kGroupBytes + (t & 31)] |= static_cast<uint8_t>(nibble << (t < 32 ? 0 : 4));
}

inline int get_nibble(const uint8_t* codes, int group, int t) {
  return (codes[group * kGroupBytes + (t & 31)] >> (t < 32 ? 0 : 4)) & 15;
}

// What encoders make of an element: clamped to the range of f16, NaN to 0.
inline float finite_half(float x) {
  constexpr float kMaxHalf = 65504.0f;
  if (std::isnan(x)) return 0.0f;
  return std::clamp(x, -kMaxHalf, kMaxHalf);
}

}  // namespace headq
