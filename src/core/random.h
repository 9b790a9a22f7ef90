#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>

namespace headq {

// Numbers that are the same on every machine. SplitMix64 (Steele, Lea, Flood 2014): a full-period
// 64-bit generator from one add and one mix.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9e3779b97f4a7c15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  }

  // Uniform in (0, 1].
  double uniform() { return (static_cast<double>(next() >> 11) + 1.0) * 0x1p-53; }

  // Uniform in 0..n-1, up to 2^-53 n.
  uint64_t below(uint64_t n) {
    return static_cast<uint64_t>(static_cast<double>(next() >> 11) * 0x1p-53 * static_cast<double>(n));
  }

  // Standard normal (Box, Muller 1958).
  double normal() {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

 private:
  uint64_t state_;
};

}  // namespace headq
