// Sliding-window caches far past their window: llama.cpp reuses their cells in a ring, so blocks
// are sealed, opened by new rows, and sealed again.
#include <gtest/gtest.h>

#include "ggml/compare.h"
#include "ggml/families.h"
#include "ggml/session.h"

namespace headq::testing {
namespace {

constexpr int kTokens = 700;  // the window cache has 256 cells
constexpr int kPrompt = 560;  // the rest is decoded one by one
const SessionConfig kRing = {.n_ctx = 1024, .n_ubatch = 32};

std::vector<TinyFamily> window_families() {
  std::vector<TinyFamily> out;
  for (TinyFamily family : served_families()) {
    if (has_window(family)) out.push_back(family);
  }
  return out;
}

using RingFamily = EachFamily;
INSTANTIATE_TEST_SUITE_P(Families, RingFamily, ::testing::ValuesIn(window_families()),
                         family_test_name);

SessionConfig ring(const std::string& kv) {
  SessionConfig config = kRing;
  config.kv = kv;
  return config;
}

TEST_P(RingFamily, DenseRowsFollowTheCpuBackend) {
  const TinyModelConfig config{.family = GetParam()};
  const Model cpu(config, Backend::kCpu);
  const Model model(config, Backend::kHeadq);
  SessionConfig exact = kRing;
  exact.type_kv = GGML_TYPE_F32;
  exact.flash_attn = false;
  const std::vector<int32_t> tokens = tiny_tokens(kTokens, 1);
  for (const int n_prompt : {kTokens, kPrompt}) {
    SCOPED_TRACE(n_prompt);
    const Logits expected = run(cpu, exact, tokens, n_prompt);
    EXPECT_LE(relative_error(expected, run(model, kRing, tokens, n_prompt)), 1e-3);
  }
}

TEST_P(RingFamily, PackedRowsFollow) {
  const Model model({.family = GetParam(), .n_swa = 150}, Backend::kHeadq);
  const std::vector<int32_t> tokens = tiny_tokens(kTokens, 1);
  for (const int n_prompt : {kTokens, kPrompt}) {
    SCOPED_TRACE(n_prompt);
    const Logits dense = run(model, kRing, tokens, n_prompt);
    const double kivi8 = mean_kld(dense, run(model, ring("kivi8"), tokens, n_prompt));
    const double kivi4 = mean_kld(dense, run(model, ring("kivi4"), tokens, n_prompt));
    const double kivi2 = mean_kld(dense, run(model, ring("kivi2"), tokens, n_prompt));
    EXPECT_LT(kivi8, 1e-4);
    EXPECT_LT(kivi8, 0.1 * kivi4);
    EXPECT_LT(kivi4, 0.3 * kivi2);
    EXPECT_LT(kivi2, 2.0);
  }
}

TEST_P(RingFamily, RingEqualsFullSizeForDenseRows) {
  const Model model({.family = GetParam()}, Backend::kHeadq);
  const std::vector<int32_t> tokens = tiny_tokens(kTokens, 1);
  SessionConfig full = kRing;
  full.swa_full = true;
  EXPECT_LE(relative_error(run(model, full, tokens, kTokens), run(model, kRing, tokens, kTokens)),
            1e-4);
}

TEST_P(RingFamily, ParallelSequencesShareTheRing) {
  const Model model({.family = GetParam()}, Backend::kHeadq);
  for (const bool unified : {true, false}) {
    SCOPED_TRACE(unified ? "unified" : "streams");
    SessionConfig config = kRing;
    config.n_ctx = 2048;
    config.n_seq_max = 2;
    config.unified = unified;
    SessionConfig fine = config;
    fine.kv = "kivi8";
    Session dense_session(model, config);
    Session fine_session(model, fine);
    for (int round = 0; round < 10; ++round) {
      for (int seq : {0, 1}) {
        const std::vector<int32_t> tokens = tiny_tokens(37, 100 + 2 * round + seq);
        const Logits dense = dense_session.decode(tokens, 37 * round, seq);
        EXPECT_LE(mean_kld(dense, fine_session.decode(tokens, 37 * round, seq)), 5e-4);
      }
    }
  }
}

}  // namespace
}  // namespace headq::testing
