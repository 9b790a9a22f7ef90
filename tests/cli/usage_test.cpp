// What every subcommand has in common.

#include <gtest/gtest.h>

#include "cli/command.h"
#include "cli/progress.h"

namespace headq {
namespace {

using testing::run_headq;
using testing::run_shell;

TEST(Usage, HelpNamesEveryCommandOnStdout) {
  const auto result = run_headq({"--help"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  for (const char* command : {"bench", "calibrate", "ppl", "diagnose", "inspect", "with"}) {
    EXPECT_NE(result.out.find(command), std::string::npos) << command;
  }
}

TEST(Usage, PrintsItsVersion) {
  const auto result = run_headq({"--version"});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.out, std::string("headq ") + HEADQ_TEST_VERSION + "\n");
}

TEST(Usage, RefusesWhatItDoesNotKnow) {
  EXPECT_REFUSAL(run_headq({}), 2, "a command is missing; there are ");
  EXPECT_REFUSAL(run_headq({"bogus"}), 2, "unknown command 'bogus'; there are ");
  EXPECT_REFUSAL(run_headq({"--bogus"}), 2, "--bogus");
  EXPECT_REFUSAL(run_headq({"inspect", "--bogus", "f"}), 2, "--bogus");
  EXPECT_REFUSAL(run_headq({"inspect", "f", "junk"}), 2, "junk");
  EXPECT_REFUSAL(run_headq({"with", "junk", "--", "llama-cli"}), 2, "junk");
  EXPECT_REFUSAL(run_headq({"inspect", "f", "--", "llama-cli"}), 2, "belong to headq with");
}

TEST(Usage, FailsWhenTheResultCannotBeWritten) {
  const auto result = run_shell("\"$HEADQ\" --help >/dev/full");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.err, "headq: cannot write to standard output\n");
}

TEST(Usage, WritesNoProgressWhenStderrIsNoTerminal) {
  const auto result = run_shell("\"$HEADQ\" inspect /dev/null");
  EXPECT_EQ(result.err.find('\r'), std::string::npos);
}

TEST(Progress, TellsTheShareAndTheTimeLeft) {
  EXPECT_EQ(progress_line("x", 0, 10, 5.0), "x    0 %");
  EXPECT_EQ(progress_line("x", 5, 10, 5.0), "x   50 %  5 s left");
  EXPECT_EQ(progress_line("x", 1, 10, 10.0), "x   10 %  1:30 left");
  EXPECT_EQ(progress_line("x", 1, 3, 3600.0), "x   33 %  2:00:00 left");
  EXPECT_EQ(progress_line("x", 10, 10, 5.0), "x  100 %  0 s left");
  EXPECT_EQ(progress_line("x", 999, 1000, 5.0), "x   99 %  0 s left");  // not yet 100
  EXPECT_EQ(progress_line("x", 0, 0, 5.0), "x");
}

}  // namespace
}  // namespace headq
