#include "cli/bench_report.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "cli/table.h"

namespace headq {
namespace {

constexpr double kMiB = 1 << 20;

std::string ratio_cell(const Spread& ratio) {
  return fmt::format("{:.2f} ({:.2f}–{:.2f})", ratio.median, ratio.min, ratio.max);
}

void add_speed(std::vector<std::string>& cells, std::span<const BenchRun> reference,
               std::span<const BenchRun> runs, int n_tokens) {
  if (n_tokens == 0) return;
  const BenchSpeed speed = speed_of(reference, runs, n_tokens);
  cells.push_back(fmt::format("{:.2f}", speed.rate.median));
  cells.push_back(ratio_cell(speed.ratio));
}

std::string memory_cell(uint64_t bytes) {
  return bytes == 0 ? "-" : fmt::format("{:.1f}", static_cast<double>(bytes) / kMiB);
}

std::string share_cell(uint64_t bytes, uint64_t reference) {
  if (bytes == 0 || reference == 0) return "-";
  return fmt::format("{:.2f}", static_cast<double>(bytes) / static_cast<double>(reference));
}

std::string depth_table(const BenchReport& report, size_t depth) {
  const BenchPlan& plan = report.plan;
  std::vector<std::string> header = {fmt::format("depth {}", plan.depths[depth])};
  const auto add = [&header](auto... cells) { (header.push_back(cells), ...); };
  if (plan.n_gen > 0) add(fmt::format("tg{} t/s", plan.n_gen), "x f16 (min–max)");
  if (plan.n_prompt > 0) add(fmt::format("pp{} t/s", plan.n_prompt), "x f16 (min–max)");
  add("process MiB", "x f16", "cache MiB");
  Table table(header);
  const std::vector<BenchCell>& cells = report.cells[depth];
  for (size_t i = 0; i < cells.size(); ++i) {
    std::vector<std::string> row = {report.candidates[i].name};
    add_speed(row, cells[0].generate, cells[i].generate, plan.n_gen);
    add_speed(row, cells[0].prompt, cells[i].prompt, plan.n_prompt);
    row.push_back(memory_cell(cells[i].memory.process));
    row.push_back(share_cell(cells[i].memory.process, cells[0].memory.process));
    row.push_back(memory_cell(cells[i].memory.cache));
    table.add_row(row);
  }
  return table.to_string();
}

nlohmann::ordered_json to_json(const Spread& s) {
  return {{"median", s.median}, {"min", s.min}, {"max", s.max}};
}

nlohmann::ordered_json speed_json(std::span<const BenchRun> reference,
                                  std::span<const BenchRun> runs, int n_tokens) {
  if (n_tokens == 0) return nullptr;
  const BenchSpeed speed = speed_of(reference, runs, n_tokens);
  nlohmann::ordered_json seconds, began;
  for (const BenchRun& run : runs) {
    seconds.push_back(run.seconds);
    began.push_back(run.began);
  }
  return {{"tokens_per_second", to_json(speed.rate)},
          {"ratio", to_json(speed.ratio)},
          {"seconds", seconds},
          {"began", began}};
}

nlohmann::ordered_json memory_json(uint64_t bytes) {
  return bytes == 0 ? nlohmann::ordered_json(nullptr) : nlohmann::ordered_json(bytes);
}

}  // namespace

BenchSpeed speed_of(std::span<const BenchRun> reference, std::span<const BenchRun> runs,
                    int n_tokens) {
  return {spread_of(rates(runs, n_tokens)), spread_of(paired_ratios(reference, runs))};
}

std::string to_table(const BenchReport& report) {
  std::string out;
  for (size_t i = 0; i < report.cells.size(); ++i) out += depth_table(report, i) + "\n";
  return out + fmt::format(
                   "{}: {} repetitions in turn, medians; {}; -t {} -ub {}, context {}, "
                   "window {}, sinks {}, {}\n",
                   report.model, report.plan.n_repetitions,
                   report.text.empty() ? "pseudo-random tokens" : report.text,
                   report.settings.n_threads, report.settings.n_ubatch, report.settings.n_ctx,
                   report.window, report.sinks, report.isa);
}

std::string to_json(const BenchReport& report) {
  const BenchPlan& plan = report.plan;
  nlohmann::ordered_json depths = nlohmann::ordered_json::array();
  for (size_t d = 0; d < report.cells.size(); ++d) {
    nlohmann::ordered_json rows = nlohmann::ordered_json::array();
    const std::vector<BenchCell>& cells = report.cells[d];
    for (size_t i = 0; i < cells.size(); ++i) {
      const BenchCandidate& candidate = report.candidates[i];
      rows.push_back({{"cache", candidate.name},
                      {"engine", candidate.device == Device::kCpu ? "llama.cpp" : "headq"},
                      {"generate", speed_json(cells[0].generate, cells[i].generate, plan.n_gen)},
                      {"prompt", speed_json(cells[0].prompt, cells[i].prompt, plan.n_prompt)},
                      {"process_bytes", memory_json(cells[i].memory.process)},
                      {"cache_bytes", memory_json(cells[i].memory.cache)}});
    }
    depths.push_back({{"depth", plan.depths[d]}, {"rows", rows}});
  }
  const nlohmann::ordered_json out = {{"model", report.model},
                                      {"text", report.text},
                                      {"profile", report.profile},
                                      {"isa", report.isa},
                                      {"n_ctx", report.settings.n_ctx},
                                      {"n_ubatch", report.settings.n_ubatch},
                                      {"n_threads", report.settings.n_threads},
                                      {"n_gen", plan.n_gen},
                                      {"n_prompt", plan.n_prompt},
                                      {"n_repetitions", plan.n_repetitions},
                                      {"window", report.window},
                                      {"sinks", report.sinks},
                                      {"depths", depths}};
  return out.dump(2) + "\n";
}

}  // namespace headq
