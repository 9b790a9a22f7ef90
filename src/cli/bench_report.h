#pragma once

#include <string>
#include <vector>

#include "runner/bench.h"

namespace headq {

// What a bench was made of and what it measured.
struct BenchReport {
  std::string model;  // names without folders
  std::string text;   // "" for pseudo-random tokens
  std::string profile;
  std::string isa;
  BenchSettings settings;
  BenchPlan plan;
  int window = 0;
  int sinks = 0;
  std::vector<BenchCandidate> candidates;     // the first one is the reference: f16
  std::vector<std::vector<BenchCell>> cells;  // [plan.depths][candidates]
};

// How fast one kind of call was; ratios are against the reference.
struct BenchSpeed {
  Spread rate;   // tokens per second
  Spread ratio;  // of the repetitions, each against the reference's of the same one
};

// runs, reference: of the same depth, not empty.
BenchSpeed speed_of(std::span<const BenchRun> reference, std::span<const BenchRun> runs,
                    int n_tokens);

// docs/performance.md has the schema of the JSON. The plot is an SVG file that follows the reader's
// light or dark theme. All depend on their argument alone.
std::string to_table(const BenchReport& report);
std::string to_json(const BenchReport& report);
std::string to_svg(const BenchReport& report);

}  // namespace headq
