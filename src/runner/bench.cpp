#include "runner/bench.h"

#include <fmt/format.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <sstream>

#include "core/random.h"
#include "headq/error.h"
#include "runner/process_memory.h"
#include "runner/text.h"
#include "runner/worker.h"

namespace headq {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

constexpr uint64_t kTokenSeed = 1;

// Reads the whole model once and says what is resident then; nothing where the system does not tell
// the peak from then on. The cache is dense and gone again.
std::optional<ProcessMemory> warm_memory(const Model& model, const BenchSettings& settings) {
  constexpr int kWarmTokens = 16;
  {
    Context context(model, {.n_ctx = 256,
                            .n_batch = kWarmTokens,
                            .n_ubatch = kWarmTokens,
                            .n_outputs = 1,
                            .n_threads = settings.n_threads});
    const auto tokens = bench_tokens(model, "", kWarmTokens);
    context.decode(tokens, 0, kWarmTokens - 1);
  }
  ::malloc_trim(0);
  try {
    reset_peak_memory();
    return ProcessMemory::read();
  } catch (const Error&) {
    return std::nullopt;
  }
}

class LocalSubject : public BenchSubject {
 public:
  LocalSubject(const BenchCandidate& candidate, const BenchSettings& settings)
      : n_ubatch_(settings.n_ubatch),
        model_(Model::load(settings.model, candidate.device)),
        tokens_(bench_tokens(model_, settings.text, settings.n_ctx)),
        n_window_(model_.info().n_swa) {
    if (!candidate.profile.empty()) model_.check_profile(candidate.profile);
    before_ = warm_memory(model_, settings);
    context_.emplace(model_, ContextOptions{.n_ctx = settings.n_ctx,
                                            .n_batch = n_ubatch_,
                                            .n_ubatch = n_ubatch_,
                                            .n_outputs = 1,
                                            .n_threads = settings.n_threads,
                                            .cache = candidate.cache,
                                            .profile = candidate.profile,
                                            .cpu_cache = candidate.cpu_cache});
  }

  void fill(int n_tokens) override {
    if (n_tokens > n_filled_) decode(n_filled_, n_tokens);
    n_filled_ = std::max(n_filled_, n_tokens);
  }

  double generate(int n) override {
    decode(n_filled_, n_filled_ + 1);  // what the other caches' turns have cooled down
    const auto start = Clock::now();
    for (int i = 1; i <= n; ++i) decode(n_filled_ + i, n_filled_ + i + 1);
    return finish(start);
  }

  double prompt(int n) override {
    const auto start = Clock::now();
    decode(n_filled_, n_filled_ + n);
    return finish(start);
  }

  BenchMemory memory() override {
    return {.process = before_ ? peak_above(*before_, ProcessMemory::read()) : 0,
            .cache = context_->stats().cache_bytes()};
  }

 private:
  void decode(int begin, int end) {
    for (int at = begin; at < end; at += n_ubatch_) {
      const int n = std::min(n_ubatch_, end - at);
      context_->decode(std::span(tokens_).subspan(static_cast<size_t>(at), static_cast<size_t>(n)),
                       at, at + n - 1);
    }
  }

  double finish(Clock::time_point start) {
    const double seconds = seconds_since(start);
    // The cache of a sliding window has lost its oldest rows to what is forgotten now.
    const int kept = n_window_ > 0 ? std::max(0, n_filled_ - n_window_) : n_filled_;
    context_->remove_from(kept);
    decode(kept, n_filled_);
    return seconds;
  }

  int n_ubatch_;
  Model model_;
  std::vector<int32_t> tokens_;
  int n_window_;
  std::optional<ProcessMemory> before_;
  std::optional<Context> context_;
  int n_filled_ = 0;
};

// Requests and answers are numbers behind a word.
std::string serve(BenchSubject& subject, const std::string& request) {
  std::istringstream words(request);
  std::string verb;
  int n = 0;
  words >> verb >> n;
  if (verb == "generate") return fmt::format("{:.17g}", subject.generate(n));
  if (verb == "prompt") return fmt::format("{:.17g}", subject.prompt(n));
  if (verb == "fill") {
    subject.fill(n);
    return "";
  }
  const BenchMemory memory = subject.memory();
  return fmt::format("{} {}", memory.process, memory.cache);
}

class SubjectProcess : public BenchSubject {
 public:
  SubjectProcess(const BenchCandidate& candidate, const BenchSettings& settings)
      : worker_(candidate.name, [candidate, settings]() -> Worker::Handler {
          const std::shared_ptr<BenchSubject> subject = make_subject(candidate, settings);
          return [subject](const std::string& request) { return serve(*subject, request); };
        }) {}

  void fill(int n_tokens) override { worker_.ask(fmt::format("fill {}", n_tokens)); }
  double generate(int n) override { return std::stod(worker_.ask(fmt::format("generate {}", n))); }
  double prompt(int n) override { return std::stod(worker_.ask(fmt::format("prompt {}", n))); }
  BenchMemory memory() override {
    std::istringstream numbers(worker_.ask("memory"));
    BenchMemory memory;
    numbers >> memory.process >> memory.cache;
    return memory;
  }

 private:
  Worker worker_;
};

// What tokens at positions begin .. begin + n - 1 cost, for the time that is left: the integral of
// 1 + position / 2048, and several times as much for one token at a time.
size_t cost(int begin, int n, bool one_by_one) {
  const auto integral = [](int position) {
    const size_t p = static_cast<size_t>(position);
    return 4096 * p + p * p;
  };
  return (integral(begin + n) - integral(begin)) * (one_by_one ? 4 : 1);
}

class Meter {
 public:
  Meter(const BenchPlan& plan, size_t n_subjects) : plan_(plan) {
    int filled = 0;
    for (const int depth : plan.depths) {
      const size_t turns = static_cast<size_t>(plan.n_repetitions);
      total_ += n_subjects *
                (cost(filled, depth - filled, false) + turns * (generate(depth) + prompt(depth)));
      filled = depth;
    }
  }

  size_t generate(int depth) const { return cost(depth, plan_.n_gen, true); }
  size_t prompt(int depth) const { return cost(depth, plan_.n_prompt, false); }
  void add(size_t work) {
    done_ += work;
    if (plan_.progress) plan_.progress(std::min(done_, total_), total_);
  }

 private:
  const BenchPlan& plan_;
  size_t total_ = 0;
  size_t done_ = 0;
};

}  // namespace

std::vector<int32_t> bench_tokens(const Model& model, const std::string& text, int n) {
  std::vector<int32_t> tokens;
  if (!text.empty()) {
    tokens = model.tokenize(read_text(text).text);
    if (tokens.size() < static_cast<size_t>(n)) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("text '{}' has {} tokens, {} are needed", text, tokens.size(), n));
    }
    tokens.resize(static_cast<size_t>(n));
    return tokens;
  }
  Random random(kTokenSeed);
  for (int i = 0; i < n; ++i) {
    tokens.push_back(static_cast<int32_t>(random.below(static_cast<uint64_t>(model.n_vocab()))));
  }
  if (model.bos() >= 0 && n > 0) tokens[0] = model.bos();
  return tokens;
}

std::unique_ptr<BenchSubject> make_subject(const BenchCandidate& candidate,
                                           const BenchSettings& settings) {
  return std::make_unique<LocalSubject>(candidate, settings);
}

std::unique_ptr<BenchSubject> make_subject_process(const BenchCandidate& candidate,
                                                   const BenchSettings& settings) {
  return std::make_unique<SubjectProcess>(candidate, settings);
}

std::vector<std::vector<BenchCell>> run_bench(std::span<BenchSubject* const> subjects,
                                              const BenchPlan& plan) {
  const auto start = Clock::now();
  Meter meter(plan, subjects.size());
  std::vector<std::vector<BenchCell>> cells;
  for (BenchSubject* subject : subjects) subject->fill(0);  // so that none fails behind long fills
  int filled = 0;
  for (const int depth : plan.depths) {
    for (BenchSubject* subject : subjects) {
      for (int at = filled; at < depth;) {
        const int end = std::min(depth, at + plan.n_fill);
        subject->fill(end);
        meter.add(cost(at, end - at, false));
        at = end;
      }
    }
    filled = depth;
    std::vector<BenchCell>& row = cells.emplace_back(subjects.size());
    for (int repetition = 0; repetition < plan.n_repetitions; ++repetition) {
      for (size_t turn = 0; turn < subjects.size(); ++turn) {
        const size_t i = (turn + static_cast<size_t>(repetition)) % subjects.size();
        if (plan.n_gen > 0) {
          const double began = seconds_since(start);
          row[i].generate.push_back({subjects[i]->generate(plan.n_gen), began});
          meter.add(meter.generate(depth));
        }
        if (plan.n_prompt > 0) {
          const double began = seconds_since(start);
          row[i].prompt.push_back({subjects[i]->prompt(plan.n_prompt), began});
          meter.add(meter.prompt(depth));
        }
      }
    }
    for (size_t i = 0; i < subjects.size(); ++i) row[i].memory = subjects[i]->memory();
  }
  return cells;
}

Spread spread_of(std::span<const double> values) {
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  return {percentile(sorted, 0.5), sorted.front(), sorted.back()};
}

std::vector<double> rates(std::span<const BenchRun> runs, int n_tokens) {
  std::vector<double> out;
  for (const BenchRun& run : runs) out.push_back(n_tokens / run.seconds);
  return out;
}

std::vector<double> paired_ratios(std::span<const BenchRun> reference,
                                  std::span<const BenchRun> runs) {
  std::vector<double> out;
  for (size_t i = 0; i < runs.size(); ++i) {
    out.push_back(reference[i].seconds / runs[i].seconds);
  }
  return out;
}

}  // namespace headq
