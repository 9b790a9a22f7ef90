#include "cli/options.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <thread>

namespace headq {

int default_threads() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

void add_threads_option(CLI::App& command, int& threads) {
  command.add_option("-t,--threads", threads, "Threads")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
}

void add_format_option(CLI::App& command, std::string& format,
                       const std::vector<std::string>& formats) {
  command
      .add_option("--format", format, fmt::format("What to print: {}", fmt::join(formats, ", ")))
      ->check(CLI::IsMember(formats))
      ->capture_default_str();
}

}  // namespace headq
