#pragma once

#include <optional>
#include <ostream>
#include <string>

#include "headq/error.h"

namespace headq {

inline std::ostream& operator<<(std::ostream& out, ErrorCode code) {
  constexpr const char* kNames[] = {"kInvalidArgument", "kUnsupported", "kMismatch", "kCorrupt",
                                    "kIo"};
  return out << kNames[static_cast<int>(code)];
}

namespace testing {

// The Error that fn throws; nothing when it throws none.
template <typename Fn>
std::optional<Error> error_of(const Fn& fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error;
  }
  return std::nullopt;
}

}  // namespace testing
}  // namespace headq

// Statement throws a headq::Error of this code whose message is one line and contains text.
#define EXPECT_ERROR(statement, expected_code, text)                         \
  do {                                                                       \
    const auto headq_error = ::headq::testing::error_of([&] { statement; }); \
    ASSERT_TRUE(headq_error.has_value()) << #statement " threw nothing";     \
    EXPECT_EQ(headq_error->code(), expected_code) << headq_error->what();    \
    const std::string headq_message = headq_error->what();                   \
    EXPECT_NE(headq_message.find(text), std::string::npos) << headq_message; \
    EXPECT_EQ(headq_message.find('\n'), std::string::npos) << headq_message; \
  } while (false)
