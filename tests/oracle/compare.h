#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <string>

namespace oracle {

// How far two vectors are apart.
struct Difference {
  double max_abs = 0.0;   // NaN when any element is
  double rms = 0.0;
  double rms_wanted = 0.0;
  size_t worst = 0;
};

template <typename A, typename B>
Difference difference(std::span<const A> got, std::span<const B> wanted) {
  Difference out;
  double sum = 0.0, norm = 0.0;
  for (size_t i = 0; i < wanted.size(); ++i) {
    const double delta = std::fabs(static_cast<double>(got[i]) - static_cast<double>(wanted[i]));
    if (!(delta <= out.max_abs)) {  // also when delta is NaN
      out.max_abs = delta;
      out.worst = i;
    }
    if (std::isnan(delta)) return out;
    sum += delta * delta;
    norm += static_cast<double>(wanted[i]) * static_cast<double>(wanted[i]);
  }
  const double n = static_cast<double>(std::max<size_t>(wanted.size(), 1));
  out.rms = std::sqrt(sum / n);
  out.rms_wanted = std::sqrt(norm / n);
  return out;
}

// Passes when the vectors agree within bound * rms(wanted) and wanted is not all zeros (agreeing on
// nothing proves nothing).
template <typename A, typename B>
testing::AssertionResult close(const A& got, const B& wanted, double bound) {
  if (got.size() != wanted.size()) {
    return testing::AssertionFailure() << got.size() << " elements, wanted " << wanted.size();
  }
  const Difference d = difference(std::span(got.data(), got.size()), std::span(wanted.data(), wanted.size()));
  if (!(d.rms_wanted > 0.0)) return testing::AssertionFailure() << "the wanted vector is zero";
  if (!(d.max_abs <= bound * d.rms_wanted)) {
    return testing::AssertionFailure()
           << "element " << d.worst << ": " << got[d.worst] << ", wanted " << wanted[d.worst]
           << "; off by " << d.max_abs / d.rms_wanted << " of the rms, allowed " << bound;
  }
  return testing::AssertionSuccess();
}

}  // namespace oracle
