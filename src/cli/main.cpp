// The headq command: one subcommand a file, see commands.h.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "headq/error.h"

namespace headq {
namespace {

// llama.cpp's short names of more than one letter, which CLI11 would read as a bundle of flags.
constexpr struct {
  const char* short_name;
  const char* long_name;
} kLongNames[] = {{"-ub", "--ubatch-size"}};

// The command line in two parts, split at the first "--".
struct Arguments {
  std::vector<std::string> own;
  bool has_program = false;
  std::vector<std::string> program;
};

Arguments split_arguments(int argc, char** argv) {
  Arguments out;
  char** const end = argv + argc;
  char** const mark = std::find(argv + 1, end, std::string("--"));
  for (char** arg = argv + 1; arg != mark; ++arg) {
    out.own.emplace_back(*arg);
    for (const auto& [short_name, long_name] : kLongNames) {
      if (out.own.back() == short_name) out.own.back() = long_name;
    }
  }
  out.has_program = mark != end;
  if (out.has_program) out.program.assign(mark + 1, end);
  return out;
}

int report(const std::string& message, int code) {
  // CLI11 breaks some messages into lines, and file names may hold anything.
  std::string line = message;
  std::replace_if(
      line.begin(), line.end(), [](unsigned char c) { return c < ' '; }, ' ');
  fmt::print(stderr, "headq: {}\n", line);
  return code;
}

// CLI11's own words for a missing or unknown command leave the user guessing.
void check_command(const CLI::App& app, const Arguments& arguments) {
  const std::string first = arguments.own.empty() ? "" : arguments.own[0];
  if (first.starts_with('-')) return;
  std::string known;
  for (const CLI::App* command : app.get_subcommands(nullptr)) {
    if (command->get_name() == first) return;
    known += (known.empty() ? "" : ", ") + command->get_name();
  }
  const std::string what =
      first.empty() ? "a command is missing" : fmt::format("unknown command '{}'", first);
  throw Error(ErrorCode::kInvalidArgument, fmt::format("{}; there are {}", what, known));
}

int parse_and_run(CLI::App& app, const Arguments& arguments) {
  try {
    check_command(app, arguments);
    // CLI11 takes the arguments last one first.
    app.parse(std::vector<std::string>(arguments.own.rbegin(), arguments.own.rend()));
    return kExitOk;
  } catch (const CLI::Success& request) {  // --help, --version
    return app.exit(request);
  } catch (const CLI::ParseError& error) {
    return report(error.what(), kExitUsage);
  } catch (const ExitCode& code) {
    return code.value;
  } catch (const Error& error) {
    return report(error.what(),
                  error.code() == ErrorCode::kInvalidArgument ? kExitUsage : kExitFailure);
  } catch (const std::exception& error) {
    return report(error.what(), kExitFailure);
  }
}

int run(int argc, char** argv) {
  const Arguments arguments = split_arguments(argc, argv);
  CLI::App app("Packed 2-bit KV cache for llama.cpp", "headq");
  app.set_version_flag("--version", "headq " HEADQ_VERSION);
  app.require_subcommand(0, 1);
  app.set_help_flag("-h,--help", "Print this help and exit");

  add_calibrate_command(app);
  add_ppl_command(app);
  add_diagnose_command(app);
  add_bench_command(app);
  add_inspect_command(app);
  CLI::App* const with = add_with_command(app, arguments.program);
  if (arguments.has_program && (arguments.own.empty() || arguments.own[0] != with->get_name())) {
    return report("'--' and a program behind it belong to headq with", kExitUsage);
  }
  const int code = parse_and_run(app, arguments);
  if (code == kExitOk && (std::fflush(stdout) != 0 || std::ferror(stdout) != 0)) {
    return report("cannot write to standard output", kExitFailure);
  }
  return code;
}

}  // namespace
}  // namespace headq

int main(int argc, char** argv) { return headq::run(argc, argv); }
