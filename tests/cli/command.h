#pragma once

#include <string>
#include <vector>

#include "runner/run_program.h"

namespace headq::testing {

// Runs the real headq with args; settings are NAME=value. The variables that headq with looks at
// are empty unless settings say otherwise.
ProgramResult run_headq(const std::vector<std::string>& args,
                        const std::vector<std::string>& settings = {});

// Runs a line of shell in which "$HEADQ" is the real headq.
ProgramResult run_shell(const std::string& line);

// Lines of text.
std::vector<std::string> lines_of(const std::string& text);

}  // namespace headq::testing

// result failed with this code and one line on stderr, "headq: ..." with text in it; nothing went
// to stdout.
#define EXPECT_REFUSAL(result, code, text)                                                  \
  do {                                                                                      \
    const ::headq::testing::ProgramResult headq_result = result;                            \
    EXPECT_EQ(headq_result.exit_code, code) << headq_result.err;                            \
    EXPECT_EQ(headq_result.out, "");                                                        \
    EXPECT_EQ(::headq::testing::lines_of(headq_result.err).size(), 1u) << headq_result.err; \
    EXPECT_EQ(headq_result.err.rfind("headq: ", 0), 0u) << headq_result.err;                \
    EXPECT_NE(headq_result.err.find(text), std::string::npos) << headq_result.err;          \
  } while (false)
