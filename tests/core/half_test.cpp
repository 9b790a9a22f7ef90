#include "core/half.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <random>

#include "oracle/half.h"

namespace headq {
namespace {

using oracle::CompilerHalf;

Half reference(float f) { return std::bit_cast<Half>(static_cast<CompilerHalf>(f)); }

TEST(Half, EveryHalfWidensExactly) {
  for (uint32_t h = 0; h < 0x10000; ++h) {
    const Half half = static_cast<Half>(h);
    const float wanted = static_cast<float>(std::bit_cast<CompilerHalf>(half));
    const float got = half_to_float(half);
    if (std::isnan(wanted)) {
      ASSERT_TRUE(std::isnan(got)) << h;
    } else {
      ASSERT_EQ(std::bit_cast<uint32_t>(got), std::bit_cast<uint32_t>(wanted)) << h;
    }
  }
}

TEST(Half, FloatsRoundToNearestEven) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000000; ++i) {
    const float f = std::bit_cast<float>(static_cast<uint32_t>(random()));
    if (std::isnan(f)) {
      ASSERT_TRUE(std::isnan(half_to_float(float_to_half(f))));
    } else {
      ASSERT_EQ(float_to_half(f), reference(f)) << f;
    }
  }
}

TEST(Half, TiesAndEdges) {
  for (uint32_t h = 0; h < 0x7c00; ++h) {  // the midpoint above every finite half
    const float a = half_to_float(static_cast<Half>(h));
    const float b = h + 1 == 0x7c00 ? 65536.0f : half_to_float(static_cast<Half>(h + 1));
    const float middle = a + (b - a) / 2;
    ASSERT_EQ(float_to_half(middle), reference(middle)) << h;
    ASSERT_EQ(float_to_half(-middle), reference(-middle)) << h;
  }
}

}  // namespace
}  // namespace headq
