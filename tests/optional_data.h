#pragma once

// What only some machines have. A test that needs it is skipped elsewhere, here and nowhere else.

#include <gtest/gtest.h>

#include <cstdlib>
#include <string>

namespace headq::testing {

// The folder that HEADQ_DATA_DIR names; "" when it names none.
inline std::string data_dir() {
  const char* dir = std::getenv("HEADQ_DATA_DIR");
  return dir == nullptr ? "" : dir;
}

}  // namespace headq::testing

// At the start of a test with the label "data".
#define HEADQ_NEEDS_DATA_DIR() \
  if (::headq::testing::data_dir().empty()) GTEST_SKIP() << "HEADQ_DATA_DIR is not set"
