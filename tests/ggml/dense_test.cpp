// The plugin with dense rows against the CPU backend.
//
// The measure is the distance to the same model with f32 caches and unfused attention, where
// nothing but f32 arithmetic rounds. Both contestants store f16 rows; the CPU backend also rounds
// queries, and in single-token decoding the sum over values, to f16. So its distance is about 5e-4
// of the logits' RMS for prompts and 2e-3 for decoding, and the plugin has to be at least as near.
#include <gtest/gtest.h>

#include <ostream>

#include "ggml/compare.h"
#include "ggml/families.h"
#include "ggml/session.h"

namespace headq::testing {
namespace {

constexpr int kPrompt = 299;  // no multiple of 64
constexpr int kDecoded = 12;
constexpr double kNear = 1e-3;  // of the logits' RMS

const SessionConfig kExact = {.type_kv = GGML_TYPE_F32, .flash_attn = false};

struct Runs {
  Logits exact, cpu, plugin;
};

Runs run_all(const TinyModelConfig& config, SessionConfig session) {
  const Model cpu(config, Backend::kCpu);
  const Model plugin(config, Backend::kHeadq);
  const std::vector<int32_t> tokens = tiny_tokens(kPrompt + kDecoded, config.seed);
  SessionConfig exact = kExact;
  exact.n_ctx = session.n_ctx;
  return {run(cpu, exact, tokens, kPrompt), run(cpu, session, tokens, kPrompt),
          run(plugin, session, tokens, kPrompt)};
}

void expect_as_near_as_cpu(const Runs& runs, int begin, int end) {
  const Logits exact = runs.exact.rows(begin, end);
  const double cpu = relative_error(exact, runs.cpu.rows(begin, end));
  const double plugin = relative_error(exact, runs.plugin.rows(begin, end));
  EXPECT_LE(plugin, 1.1 * cpu);
  EXPECT_LE(plugin, kNear);
}

using DenseFamily = EachFamily;
HEADQ_FOR_EACH_FAMILY(DenseFamily);

TEST_P(DenseFamily, PromptIsAsNearToF32AsTheCpuBackend) {
  const Runs runs = run_all({.family = GetParam()}, {.n_ubatch = 128});
  expect_as_near_as_cpu(runs, 0, kPrompt);
}

TEST_P(DenseFamily, DecodingIsAsNearToF32AsTheCpuBackend) {
  const Runs runs = run_all({.family = GetParam()}, {});
  expect_as_near_as_cpu(runs, kPrompt, kPrompt + kDecoded);
}

TEST_P(DenseFamily, CpuAndPluginAgree) {
  const Runs runs = run_all({.family = GetParam()}, {});
  EXPECT_LE(relative_error(runs.cpu.rows(0, kPrompt), runs.plugin.rows(0, kPrompt)), kNear);
  EXPECT_LE(relative_error(runs.cpu, runs.plugin), 3 * kNear);  // decoded rows included
}

class DenseHeadDim : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Dims, DenseHeadDim,
                         ::testing::Values(16, 20, 48, 64, 72, 80, 96, 112, 128, 192, 256),
                         ::testing::PrintToStringParamName());

TEST_P(DenseHeadDim, IsAsNearToF32AsTheCpuBackend) {
  const Runs runs = run_all({.head_dim = GetParam(), .n_embd = 64}, {});
  expect_as_near_as_cpu(runs, 0, kPrompt);
  expect_as_near_as_cpu(runs, kPrompt, kPrompt + kDecoded);
}

struct Heads {
  int n_head, n_head_kv;
};

std::ostream& operator<<(std::ostream& out, const Heads& heads) {
  return out << heads.n_head << " over " << heads.n_head_kv;
}

class DenseGroups : public ::testing::TestWithParam<Heads> {};

INSTANTIATE_TEST_SUITE_P(Heads, DenseGroups,
                         ::testing::Values(Heads{1, 1}, Heads{4, 1}, Heads{6, 2}, Heads{9, 3},
                                           Heads{7, 7}, Heads{14, 2}, Heads{16, 1}),
                         [](const auto& info) {
                           return std::to_string(info.param.n_head) + "over" +
                                  std::to_string(info.param.n_head_kv);
                         });

TEST_P(DenseGroups, AreAsNearToF32AsTheCpuBackend) {
  const Runs runs =
      run_all({.n_head = GetParam().n_head, .n_head_kv = GetParam().n_head_kv, .n_embd = 64}, {});
  expect_as_near_as_cpu(runs, 0, kPrompt);
  expect_as_near_as_cpu(runs, kPrompt, kPrompt + kDecoded);
}

TEST(DenseContext, LastCellOfTheSmallestContextIsUsed) {
  const TinyModelConfig config{.family = TinyFamily::kLlama};
  const Model cpu(config, Backend::kCpu);
  const Model plugin(config, Backend::kHeadq);
  const std::vector<int32_t> tokens = tiny_tokens(256, 1);
  const Logits expected = run(cpu, kExact, tokens, 250);
  Session full(plugin, {.n_ctx = 125});  // llama.cpp makes 256 of it
  Logits actual = full.decode(std::span(tokens).first(125));
  actual.append(full.decode(std::span(tokens).subspan(125, 125), 125));
  actual.append(full.decode_one_by_one(std::span(tokens).subspan(250), 250));
  EXPECT_LE(relative_error(expected, actual), kNear);
  EXPECT_THROW(full.decode(tiny_tokens(1, 2), 256), std::runtime_error);
}

TEST(DenseContext, ContextOfNoMultipleOfTheBlockWorks) {
  const TinyModelConfig config{.family = TinyFamily::kLlama};
  const Model cpu(config, Backend::kCpu);
  const Model plugin(config, Backend::kHeadq);
  const std::vector<int32_t> tokens = tiny_tokens(301, 1);
  const Logits expected =
      run(cpu, {.n_ctx = 301, .type_kv = GGML_TYPE_F32, .flash_attn = false}, tokens, 290);
  EXPECT_LE(relative_error(expected, run(plugin, {.n_ctx = 301}, tokens, 290)), kNear);
}

TEST(DenseContext, PromptInOddPiecesEqualsOnePrompt) {
  const Model plugin({.family = TinyFamily::kLlama}, Backend::kHeadq);
  const std::vector<int32_t> tokens = tiny_tokens(200, 1);
  Session pieces(plugin, {});
  Logits actual;
  int done = 0;
  for (int n : {1, 63, 2, 64, 7, 63}) {
    actual.append(pieces.decode(std::span(tokens).subspan(done, n), done));
    done += n;
  }
  ASSERT_EQ(done, 200);
  EXPECT_LE(relative_error(run(plugin, {}, tokens, 200), actual), 1e-4);
}

TEST(DensePlugin, OutputIsNotTheCpuBackends) {
  // Guards the suite against a plugin that is never asked: rounding must differ somewhere.
  const Runs runs = run_all({.family = TinyFamily::kLlama}, {});
  EXPECT_FALSE(identical(runs.cpu, runs.plugin));
}

}  // namespace
}  // namespace headq::testing
