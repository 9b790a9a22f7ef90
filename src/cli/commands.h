#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace headq {

// Exit codes of the headq command. An Error ends it with kExitUsage when its code is
// kInvalidArgument (the user gave a value outside its limits), and with kExitFailure otherwise.
inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitCheckFailed = 3;

// Thrown by a command that has printed its result and ends with a code other than 0.
struct ExitCode {
  int value;
};

// Each adds one subcommand whose callback runs it. A callback throws Error or ExitCode; main prints
// the Error as one line on stderr.
CLI::App* add_bench_command(CLI::App& app);
CLI::App* add_calibrate_command(CLI::App& app);
CLI::App* add_diagnose_command(CLI::App& app);
CLI::App* add_inspect_command(CLI::App& app);
CLI::App* add_ppl_command(CLI::App& app);

// program: what stood after "--" on the command line, filled before the callback runs; it must
// outlive app.
CLI::App* add_with_command(CLI::App& app, const std::vector<std::string>& program);

}  // namespace headq
