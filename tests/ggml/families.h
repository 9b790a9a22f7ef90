#pragma once

// Test suites over model families and over head shapes.

#include <gtest/gtest.h>

#include <string>

#include "models/tiny_models.h"

namespace headq::testing {

class EachFamily : public ::testing::TestWithParam<TinyFamily> {};

inline std::string family_test_name(const ::testing::TestParamInfo<TinyFamily>& info) {
  return to_string(info.param);
}

}  // namespace headq::testing

// Runs the suite, an alias of EachFamily, once per family.
#define HEADQ_FOR_EACH_FAMILY(suite)                                                      \
  INSTANTIATE_TEST_SUITE_P(Families, suite,                                               \
                           ::testing::ValuesIn(::headq::testing::all_tiny_families()),    \
                           ::headq::testing::family_test_name)
