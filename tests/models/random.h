#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <vector>

namespace headq::testing {

// SplitMix64 with uniform and Gaussian draws that are the same on every platform.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    uint64_t z = (state_ += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
  }

  double uniform() { return (static_cast<double>(next() >> 11) + 0.5) * 0x1.0p-53; }  // (0, 1)

  int below(int n) { return static_cast<int>(next() % static_cast<uint64_t>(n)); }

  double gaussian() {
    const double radius = std::sqrt(-2.0 * std::log(uniform()));
    return radius * std::cos(2.0 * std::numbers::pi * uniform());
  }

  std::vector<float> gaussians(size_t n, double stddev) {
    std::vector<float> out(n);
    for (float& x : out) x = static_cast<float>(stddev * gaussian());
    return out;
  }

 private:
  uint64_t state_;
};

}  // namespace headq::testing
