// What headq bench is made of: processes that answer, their memory, whose turn it is, and ratios.

#include "runner/bench.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <functional>

#include "headq/error.h"
#include "models/tiny_models.h"
#include "runner/process_memory.h"
#include "runner/run_program.h"
#include "runner/tiny_run.h"
#include "runner/worker.h"

namespace headq {
namespace {

using testing::scratch_dir;
using testing::scratch_file;
using testing::tiny_model_path;
using testing::tiny_text_path;
using testing::TinyFamily;
using testing::write_tiny_model;

std::string error_of(const std::function<void()>& work, ErrorCode code) {
  try {
    work();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

TEST(Worker, AnswersInItsOwnProcess) {
  Worker worker("x", [] {
    return [n = 0](const std::string& request) mutable {
      return request + " " + std::to_string(++n) + " " + std::to_string(::getpid());
    };
  });
  EXPECT_EQ(worker.ask("a"), "a 1 " + std::to_string(worker.pid()));
  EXPECT_EQ(worker.ask(std::string(100000, 'b')).substr(100000, 3), " 2 ");
  EXPECT_NE(worker.pid(), ::getpid());
}

TEST(Worker, PassesErrorsOnAndLivesOn) {
  Worker worker("x", [] {
    return [](const std::string& request) -> std::string {
      if (request == "bad") throw Error(ErrorCode::kMismatch, "one line");
      return "good";
    };
  });
  EXPECT_EQ(error_of([&] { worker.ask("bad"); }, ErrorCode::kMismatch), "one line");
  EXPECT_EQ(worker.ask("other"), "good");
}

TEST(Worker, AFailedStartIsToldByTheFirstAnswer) {
  Worker worker("x", []() -> Worker::Handler { throw Error(ErrorCode::kCorrupt, "no model"); });
  EXPECT_EQ(error_of([&] { worker.ask("a"); }, ErrorCode::kCorrupt), "no model");
}

TEST(Worker, ItsDeathIsOneLineThatNamesItAndTheSignal) {
  const auto handler = [](const std::string& request) -> std::string {
    if (request == "exit") ::_exit(7);
    ::raise(SIGKILL);
    return "";
  };
  Worker killed("nib2/nib2", [&] { return handler; });
  const std::string line = error_of([&] { killed.ask("die"); }, ErrorCode::kIo);
  EXPECT_EQ(line, "the process of nib2/nib2 died of signal 9 (Killed)");
  EXPECT_EQ(error_of([&] { killed.ask("again"); }, ErrorCode::kIo),
            "the process of nib2/nib2 is gone");
  Worker ended("q8_0", [&] { return handler; });
  EXPECT_EQ(error_of([&] { ended.ask("exit"); }, ErrorCode::kIo),
            "the process of q8_0 ended with exit code 7");
}

TEST(Worker, OneThatIsKilledFromOutsideIsNoticed) {
  Worker worker("x", [] { return [](const std::string&) { return "here"; }; });
  EXPECT_EQ(worker.ask("a"), "here");
  ::kill(worker.pid(), SIGTERM);
  EXPECT_EQ(error_of([&] { worker.ask("a"); }, ErrorCode::kIo),
            "the process of x died of signal 15 (Terminated)");
}

constexpr const char* kStatus =
    "Name:\theadq\nVmHWM:\t    5000 kB\nVmRSS:\t    4000 kB\n"
    "RssAnon:\t 1000 kB\nRssFile:\t    3000 kB\n";

TEST(ProcessMemory, ReadsTheLinesOfTheKernel) {
  const ProcessMemory memory = ProcessMemory::parse(kStatus);
  EXPECT_EQ(memory.peak, 5000u * 1024);
  EXPECT_EQ(memory.resident, 4000u * 1024);
  EXPECT_EQ(memory.files, 3000u * 1024);
  error_of([] { ProcessMemory::parse("VmHWM:\t 1 kB\n"); }, ErrorCode::kCorrupt);
}

TEST(ProcessMemory, ThePeakAboveLeavesOutTheModelsPages) {
  const ProcessMemory before{.resident = 100, .peak = 100, .files = 60};
  EXPECT_EQ(peak_above(before, {.resident = 150, .peak = 170, .files = 60}), 70u);
  EXPECT_EQ(peak_above(before, {.resident = 150, .peak = 170, .files = 80}), 50u);
  EXPECT_EQ(peak_above(before, {.resident = 90, .peak = 100, .files = 50}), 0u);
}

TEST(ProcessMemory, SeesWhatWasAllocatedAndFreedAgain) {
  constexpr size_t kBytes = 64u << 20;
  Worker worker("x", [] {
    return [](const std::string&) {
      reset_peak_memory();
      const ProcessMemory before = ProcessMemory::read();
      std::vector<char>(kBytes, 1);
      return std::to_string(peak_above(before, ProcessMemory::read()));
    };
  });
  const double bytes = std::stod(worker.ask(""));
  EXPECT_GT(bytes, 0.95 * kBytes);
  EXPECT_LT(bytes, 1.1 * kBytes);
}

// Writes down what is asked of it.
class FakeSubject : public BenchSubject {
 public:
  FakeSubject(char name, std::string& log) : name_(name), log_(log) {}
  void fill(int n) override { log_ += fmt_call('f', n); }
  double generate(int n) override {
    log_ += fmt_call('g', n);
    return n_++;
  }
  double prompt(int n) override {
    log_ += fmt_call('p', n);
    return 10.0 + n_++;
  }
  BenchMemory memory() override { return {.process = static_cast<uint64_t>(name_), .cache = 1}; }

 private:
  std::string fmt_call(char what, int n) const {
    return std::string(1, name_) + what + std::to_string(n) + " ";
  }
  char name_;
  std::string& log_;
  int n_ = 1;
};

TEST(RunBench, TakesTurnsWithinEveryRepetition) {
  std::string log;
  FakeSubject a('A', log), b('B', log);
  BenchSubject* const subjects[] = {&a, &b};
  size_t done = 0, total = 0;
  BenchPlan plan{.depths = {0, 5}, .n_gen = 2, .n_prompt = 4, .n_repetitions = 3, .n_fill = 3};
  plan.progress = [&](size_t d, size_t t) {
    EXPECT_GE(d, done);
    done = d;
    total = t;
  };
  const auto cells = run_bench(subjects, plan);
  const std::string turns = "Ag2 Ap4 Bg2 Bp4 Bg2 Bp4 Ag2 Ap4 Ag2 Ap4 Bg2 Bp4 ";
  EXPECT_EQ(log, "Af0 Bf0 " + turns + "Af3 Af5 Bf3 Bf5 " + turns);
  EXPECT_EQ(done, total);
  ASSERT_EQ(cells.size(), 2u);
  ASSERT_EQ(cells[1].size(), 2u);
  EXPECT_EQ(cells[1][1].memory.process, static_cast<uint64_t>('B'));
  const BenchCell& second = cells[1][0];  // of A, whose calls 7 to 12 these are
  ASSERT_EQ(second.generate.size(), 3u);
  EXPECT_EQ(second.generate[0].seconds, 7.0);
  EXPECT_EQ(second.prompt[2].seconds, 22.0);
  EXPECT_LE(second.generate[0].began, second.prompt[0].began);
  EXPECT_LE(second.prompt[0].began, second.generate[1].began);
}

TEST(RunBench, LeavesOutWhatIsNotAskedFor) {
  std::string log;
  FakeSubject a('A', log);
  BenchSubject* const subjects[] = {&a};
  const auto cells = run_bench(subjects, {.depths = {0}, .n_gen = 0, .n_repetitions = 1});
  EXPECT_EQ(log, "Af0 Ap512 ");
  EXPECT_TRUE(cells[0][0].generate.empty());
}

TEST(BenchFigures, RatiosArePairedByRepetition) {
  // A machine that is twice as slow in the second repetition changes rates, but no ratio.
  const std::vector<BenchRun> reference = {{4.0, 0.0}, {8.0, 0.0}, {4.0, 0.0}};
  const std::vector<BenchRun> runs = {{1.0, 0.0}, {2.0, 0.0}, {2.0, 0.0}};
  EXPECT_EQ(paired_ratios(reference, runs), (std::vector<double>{4.0, 4.0, 2.0}));
  EXPECT_EQ(rates(runs, 8), (std::vector<double>{8.0, 4.0, 4.0}));
}

TEST(BenchFigures, SpreadIsTheMedianBetweenTheExtremes) {
  const Spread odd = spread_of(std::vector<double>{5.0, 1.0, 2.0});
  EXPECT_EQ(odd.median, 2.0);
  EXPECT_EQ(odd.min, 1.0);
  EXPECT_EQ(odd.max, 5.0);
  EXPECT_EQ(spread_of(std::vector<double>{4.0, 1.0, 2.0, 9.0}).median, 3.0);
}

TEST(BenchTokens, AreTheSameForEveryCache) {
  const Model model = Model::load(tiny_model_path(), Device::kCpu);
  const auto tokens = bench_tokens(model, "", 300);
  EXPECT_EQ(tokens, bench_tokens(model, "", 300));
  EXPECT_EQ(std::vector(tokens.begin(), tokens.begin() + 100), bench_tokens(model, "", 100));
  ASSERT_GE(model.bos(), 0);
  EXPECT_EQ(tokens[0], model.bos());
  const auto text = bench_tokens(model, tiny_text_path(), 300);
  EXPECT_EQ(text.size(), 300u);
  EXPECT_NE(text, tokens);
  const std::string few = scratch_file("few.txt", "a b");
  const std::string why =
      error_of([&] { bench_tokens(model, few, 300); }, ErrorCode::kInvalidArgument);
  EXPECT_NE(why.find("300 are needed"), std::string::npos) << why;
}

// A model whose f16 cache is large against everything else a context takes.
constexpr testing::TinyModelConfig kWide{
    .family = TinyFamily::kLlama, .n_layer = 4, .n_head = 4, .n_head_kv = 4, .head_dim = 64};
constexpr int kWideCells = 8192;
constexpr double kWideBytes = kWideCells * 4.0 * 256 * 2 * 2;  // layers, channels, sides, bytes

TEST(SubjectProcess, MemoryIsThatOfTheCache) {
  const BenchSettings settings{.model = write_tiny_model(kWide, scratch_dir()),
                               .text = "",
                               .n_ctx = kWideCells,
                               .n_ubatch = 256,
                               .n_threads = 1};
  CacheSpec packed;
  packed.kv = KvSpec::parse("kivi2/kivi2");
  const auto f16 = make_subject_process({.name = "f16"}, settings);
  const auto q8 = make_subject_process({.name = "q8_0", .cpu_cache = "q8_0"}, settings);
  const auto headq =
      make_subject_process({.name = "headq", .device = Device::kPlugin, .cache = packed}, settings);
  headq->fill(2048);
  const BenchMemory m_f16 = f16->memory(), m_q8 = q8->memory(), m_headq = headq->memory();
  EXPECT_GT(m_f16.process, kWideBytes);
  EXPECT_LT(m_f16.process, 1.6 * kWideBytes);
  // q8_0 takes 34 bytes for what f16 takes 64.
  EXPECT_NEAR(static_cast<double>(m_f16.process) - static_cast<double>(m_q8.process),
              kWideBytes * 30 / 64, 0.05 * kWideBytes);
  EXPECT_GT(m_headq.process, m_headq.cache);
  EXPECT_GT(m_headq.cache, 0.25 * kWideBytes * 2.5 / 16);
  EXPECT_LT(static_cast<double>(m_headq.process - m_headq.cache),
            static_cast<double>(m_f16.process) - 0.75 * kWideBytes);
  EXPECT_EQ(m_f16.cache, 0u);  // llama.cpp's own says nothing
}

TEST(SubjectProcess, MeasuresBehindTheSameTokensAgainAndAgain) {
  for (const TinyFamily family : {TinyFamily::kLlama, TinyFamily::kGemma3}) {
    const BenchSettings settings{.model = write_tiny_model({.family = family}, scratch_dir()),
                                 .text = "",
                                 .n_ctx = 512,
                                 .n_ubatch = 64,
                                 .n_threads = 1};
    CacheSpec packed;
    packed.kv = KvSpec::parse("kivi2/kivi2");
    for (const Device device : {Device::kCpu, Device::kPlugin}) {
      const auto subject =
          make_subject_process({.name = "x", .device = device, .cache = packed}, settings);
      subject->fill(100);
      // More than the context holds, were anything left behind.
      for (int i = 0; i < 5; ++i) {
        EXPECT_GT(subject->generate(60), 0.0);
        EXPECT_GT(subject->prompt(128), 0.0);
      }
      subject->fill(300);
      EXPECT_GT(subject->prompt(200), 0.0);
    }
  }
}

TEST(SubjectProcess, PassesOnWhyACacheCannotBeServed) {
  const BenchSettings settings{
      .model = tiny_model_path(), .text = "", .n_ctx = 256, .n_ubatch = 64, .n_threads = 1};
  const auto subject = make_subject_process({.name = "x", .cpu_cache = "q9_9"}, settings);
  const std::string why = error_of([&] { subject->fill(1); }, ErrorCode::kInvalidArgument);
  EXPECT_NE(why.find("no cache of type 'q9_9'"), std::string::npos) << why;
}

}  // namespace
}  // namespace headq
