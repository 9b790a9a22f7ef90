#pragma once

// Test suites over model families and over head shapes.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "models/tiny_models.h"

namespace headq::testing {

// Families the plugin serves. Gemma 4 is refused: its last layers own no cache, and llama.cpp's
// scheduler gives their attention to the CPU backend (refusal_test.cpp).
inline std::vector<TinyFamily> served_families() {
  std::vector<TinyFamily> out;
  for (TinyFamily family : all_tiny_families()) {
    if (family != TinyFamily::kGemma4) out.push_back(family);
  }
  return out;
}

class EachFamily : public ::testing::TestWithParam<TinyFamily> {};

inline std::string family_test_name(const ::testing::TestParamInfo<TinyFamily>& info) {
  return to_string(info.param);
}

}  // namespace headq::testing

// Runs the suite, an alias of EachFamily, once per served family.
#define HEADQ_FOR_EACH_FAMILY(suite)                                                 \
  INSTANTIATE_TEST_SUITE_P(Families, suite,                                          \
                           ::testing::ValuesIn(::headq::testing::served_families()), \
                           ::headq::testing::family_test_name)
