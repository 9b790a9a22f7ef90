// Benchmarks of the kernels of a packed cache. Google Benchmark's own options apply;
// docs/performance.md says what the columns mean.

#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "bench/benchmarks.h"

namespace headq::bench {
namespace {

// One line a benchmark: the median of its repetitions, and their coefficient of variation.
class LineReporter : public benchmark::BenchmarkReporter {
 public:
  bool ReportContext(const Context&) override {
    std::string header =
        fmt::format("{:<44}{:>12}{:>7}", "median of the repetitions", "us", "cv %");
    for (const char* name : kColumns) header += fmt::format("{:>{}}", name, width(name));
    GetOutputStream() << header << "\n" << std::string(header.size(), '-') << std::endl;
    return true;
  }

  void ReportRuns(const std::vector<Run>& runs) override {
    const Run* shown = nullptr;
    double cv = 0.0;
    for (const Run& run : runs) {
      if (run.error_occurred) {
        GetErrorStream() << fmt::format("headq-bench-kernels: {}: {}\n", run.benchmark_name(),
                                        run.error_message);
        return;
      }
      const bool is_single = run.run_type == Run::RT_Iteration && run.repetitions <= 1;
      if (is_single || run.aggregate_name == "median") shown = &run;
      if (run.aggregate_name == "cv") cv = 100.0 * run.real_accumulated_time;
    }
    if (shown != nullptr) GetOutputStream() << line(*shown, cv) << std::endl;
  }

 private:
  static constexpr const char* kColumns[] = {
      kNsPerTokenHead, kNsPerRow,      kBytesPerToken, kGigabytesPerSecond,
      kError,          kRoundingError, kTimesF16};

  static int width(const std::string& name) {
    return std::max(9, static_cast<int>(name.size()) + 2);
  }

  static std::string line(const Run& run, double cv) {
    std::string out = fmt::format("{:<44}{:>12.1f}{:>7.1f}", run.run_name.function_name,
                                  run.GetAdjustedRealTime(), cv);
    for (const char* name : kColumns) {
      const auto found = run.counters.find(name);
      const std::string cell =
          found == run.counters.end() ? "" : fmt::format("{:.3g}", found->second.value);
      out += fmt::format("{:>{}}", cell, width(name));
    }
    return out.substr(0, out.find_last_not_of(' ') + 1);
  }
};

void print_help() {
  std::cout
      << "headq-bench-kernels [--depth CELLS] [--layers N] [--all] [Google Benchmark's options]\n"
         "  --depth   cells that an attention op reads (16384)\n"
         "  --layers  caches that are read in turn, as a model's layers are (8)\n"
         "  --all     every shape, level and number of threads, not a choice of them\n\n";
  benchmark::PrintDefaultHelp();
}

bool asks_for_format(int argc, char** argv) {
  return std::any_of(argv + 1, argv + argc, [](const char* word) {
    return std::string_view(word).starts_with("--benchmark_format=");
  });
}

int run(int argc, char** argv) {
  std::vector<std::string> words = {argv[0], "--benchmark_repetitions=5",
                                    "--benchmark_enable_random_interleaving=true",
                                    "--benchmark_min_time=0.05"};
  words.insert(words.end(), argv + 1, argv + argc);
  std::vector<char*> pointers;
  for (std::string& word : words) pointers.push_back(word.data());
  int count = static_cast<int>(pointers.size());
  benchmark::Initialize(&count, pointers.data(), print_help);

  BenchOptions options;
  CLI::App app("Kernels of a packed cache", "headq-bench-kernels");
  app.add_option("--depth", options.depth)->check(CLI::Range(1024, 1 << 20));
  app.add_option("--layers", options.n_layers)->check(CLI::Range(1, 256));
  app.add_flag("--all", options.all);
  try {
    app.parse(count, pointers.data());
    register_attention(options);
    register_encode(options);
    LineReporter reporter;
    // Another format than the lines is Google Benchmark's own.
    const size_t n_run = asks_for_format(argc, argv)
                             ? benchmark::RunSpecifiedBenchmarks()
                             : benchmark::RunSpecifiedBenchmarks(
                                   static_cast<benchmark::BenchmarkReporter*>(&reporter));
    benchmark::Shutdown();
    return n_run > 0 ? 0 : 1;
  } catch (const CLI::ParseError& error) {
    fmt::print(stderr, "headq-bench-kernels: {}\n", error.what());
    return 2;
  } catch (const std::exception& error) {
    fmt::print(stderr, "headq-bench-kernels: {}\n", error.what());
    return 1;
  }
}

}  // namespace
}  // namespace headq::bench

int main(int argc, char** argv) { return headq::bench::run(argc, argv); }
