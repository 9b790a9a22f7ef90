#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headq/spec.h"
#include "runner/model.h"
#include "runner/perplexity.h"

namespace headq {

// Speed and memory of caches, measured in turn (docs/performance.md).

// A cache to be measured: one of llama.cpp's own, without the plugin, or one of HeadQ's.
struct BenchCandidate {
  std::string name;
  Device device = Device::kCpu;
  std::string cpu_cache = "f16";  // of Device::kCpu
  CacheSpec cache = {};           // of Device::kPlugin
  std::string profile = {};
};

struct BenchMemory {
  uint64_t process = 0;  // peak of what is resident, above the loaded model; 0 when unknown
  uint64_t cache = 0;    // what the cache holds; 0 when unknown (llama.cpp's own)
};

// One cache with a model of its own.
class BenchSubject {
 public:
  virtual ~BenchSubject() = default;

  // Appends tokens until the cache holds this many.
  virtual void fill(int n_tokens) = 0;
  // Seconds for n tokens one at a time behind what fill() left, which is then as it was.
  virtual double generate(int n) = 0;
  // Seconds for n tokens at once, likewise.
  virtual double prompt(int n) = 0;
  virtual BenchMemory memory() = 0;
};

struct BenchSettings {
  std::string model;  // path
  std::string text;   // path of what fills the cache; "": pseudo-random tokens
  int n_ctx = 0;      // cells
  int n_ubatch = 512;
  int n_threads = 1;
};

// The tokens that fill a cache: those of a text, or pseudo-random ones of the vocabulary behind the
// token that starts texts; n of them, the same for every cache. Throws Error(kInvalidArgument) when
// the text has fewer.
std::vector<int32_t> bench_tokens(const Model& model, const std::string& text, int n);

// In this process, and in a child process that sleeps between two calls; the latter has to be made
// before this process starts threads or loads a model. Both throw what Model and Context throw, the
// child when it is first asked, and Error(kIo) when it died.
std::unique_ptr<BenchSubject> make_subject(const BenchCandidate& candidate,
                                           const BenchSettings& settings);
std::unique_ptr<BenchSubject> make_subject_process(const BenchCandidate& candidate,
                                                   const BenchSettings& settings);

struct BenchPlan {
  std::vector<int> depths = {0};  // ascending
  int n_gen = 32;                 // tokens of generate(), 0: it is left out
  int n_prompt = 512;             // tokens of prompt(), 0: likewise
  int n_repetitions = 5;
  int n_fill = 512;  // tokens of one fill()
  ProgressFn progress = {};
};

// One timed call.
struct BenchRun {
  double seconds = 0.0;
  double began = 0.0;  // seconds since the bench began
};

struct BenchCell {
  std::vector<BenchRun> generate, prompt;  // by repetition
  BenchMemory memory;                      // behind the last repetition
};

// Cells [depths][subjects]. At every depth each subject is filled, and then in every repetition all
// of them take their turn, the first one another in each. Calls are never made at the same time.
std::vector<std::vector<BenchCell>> run_bench(std::span<BenchSubject* const> subjects,
                                              const BenchPlan& plan);

struct Spread {
  double median = 0.0, min = 0.0, max = 0.0;
};

// values: not empty.
Spread spread_of(std::span<const double> values);

// Tokens per second of each repetition.
std::vector<double> rates(std::span<const BenchRun> runs, int n_tokens);

// How many times as fast as the reference each repetition was: its seconds over those of the run.
std::vector<double> paired_ratios(std::span<const BenchRun> reference,
                                  std::span<const BenchRun> runs);

}  // namespace headq
