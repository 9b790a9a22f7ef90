#pragma once

#include <algorithm>
#include <cmath>

#include "core/half.h"

namespace headq {

struct Range {
  float lo = INFINITY;
  float hi = -INFINITY;

  void add(float x) {
    lo = std::min(lo, x);
    hi = std::max(hi, x);
  }
};

// Parameters as they are stored; the codes are made against these, not against the exact ones.
struct MinMax {
  Half scale = 0;
  Half zero = 0;

  MinMax(const Range& range, int levels) {
    if (!(range.lo <= range.hi)) return;  // nothing to code
    zero = float_to_half(range.lo);
    scale = float_to_half((range.hi - half_to_float(zero)) / static_cast<float>(levels));
  }
};

// The code of x in units from zero on, 0..top.
inline int min_max_code(float x, float zero, float unit, int top) {
  const float wanted = unit > 0.0f ? (x - zero) / unit : 0.0f;
  return static_cast<int>(std::lrint(std::clamp(wanted, 0.0f, static_cast<float>(top))));
}

}  // namespace headq
