// When a cell is read from codes. A block of 64 cells is read packed by a query with stamp T iff
// T - (largest stamp in the block) >= window; its first `sinks` cells never are. Stamps count the
// rows of a stream in writing order, so for one sequence on a fresh context row i has stamp i.
#include <gtest/gtest.h>

#include <stdexcept>

#include "ggml/compare.h"
#include "ggml/session.h"

namespace headq::testing {
namespace {

constexpr int kBlock = 64;
constexpr int kTokens = 300;

// First row at which two runs differ; -1 when they never do.
int first_difference(const Logits& a, const Logits& b) {
  for (int i = 0; i < a.n_rows(); ++i) {
    if (!identical(a.rows(i, i + 1), b.rows(i, i + 1))) return i;
  }
  return -1;
}

class ReadHorizon : public ::testing::TestWithParam<int> {
 protected:
  ReadHorizon() : model_({.family = TinyFamily::kLlama}, Backend::kHeadq) {}

  // First row that the codec changes, decoding n_prompt rows at once and the rest one by one.
  int first_packed_read(const std::string& kv, int window, int sinks, int n_prompt) const {
    const std::vector<int32_t> tokens = tiny_tokens(kTokens, 1);
    const SessionConfig dense{.window = window, .sinks = sinks, .n_ubatch = 128};
    SessionConfig packed = dense;
    packed.kv = kv;
    return first_difference(run(model_, dense, tokens, n_prompt),
                            run(model_, packed, tokens, n_prompt));
  }

  Model model_;
};

INSTANTIATE_TEST_SUITE_P(Windows, ReadHorizon, ::testing::Values(0, 1, 31, 32, 33, 64, 100),
                         ::testing::PrintToStringParamName());

TEST_P(ReadHorizon, FirstBlockIsReadPackedOnceAllOfItIsWindowOld) {
  const int window = GetParam();
  for (const char* kv : {"kivi2/dense", "dense/kivi2", "kivi2+hq4x4@random", "token2h", "dense/kivi2+a2"}) {
    SCOPED_TRACE(kv);
    EXPECT_EQ(first_packed_read(kv, window, 0, kTokens), kBlock - 1 + window);
  }
}

TEST_P(ReadHorizon, SingleTokensSeeTheSameHorizonAsBatches) {
  const int window = GetParam();
  EXPECT_EQ(first_packed_read("kivi2", window, 0, 1), kBlock - 1 + window);
  EXPECT_EQ(first_packed_read("kivi2", window, 0, kBlock + window / 2), kBlock - 1 + window);
}

TEST_P(ReadHorizon, SinksOfABlockStayDense) {
  const int window = GetParam();
  EXPECT_EQ(first_packed_read("kivi2", window, kBlock, kTokens), 2 * kBlock - 1 + window);
  EXPECT_EQ(first_packed_read("kivi2", window, kBlock - 1, kTokens), kBlock - 1 + window);
}

class ReadSemantics : public ::testing::Test {
 protected:
  ReadSemantics() : model_({.family = TinyFamily::kLlama}, Backend::kHeadq) {}
  Model model_;
};

TEST_F(ReadSemantics, WindowBeyondThePromptLeavesItDense) {
  const std::vector<int32_t> tokens = tiny_tokens(kTokens, 2);
  EXPECT_TRUE(identical(run(model_, {}, tokens, kTokens),
                        run(model_, {.kv = "kivi2", .window = 4096}, tokens, kTokens)));
}

TEST_F(ReadSemantics, MoreSinksDoLessDamage) {
  const std::vector<int32_t> tokens = tiny_tokens(kTokens, 2);
  const Logits dense = run(model_, {}, tokens, kTokens);
  const Logits none = run(model_, {.kv = "kivi2", .sinks = 0}, tokens, kTokens);
  const Logits few = run(model_, {.kv = "kivi2", .sinks = 4}, tokens, kTokens);
  const Logits many = run(model_, {.kv = "kivi2", .sinks = 48}, tokens, kTokens);
  EXPECT_FALSE(identical(none, few));
  EXPECT_LT(mean_kld(dense, many), mean_kld(dense, none));
}

TEST_F(ReadSemantics, EverySequenceHasItsOwnSinks) {
  // Two sequences of 64 rows in one stream, all of them sinks: nothing may be read packed, even
  // with no window. A third one has rows beyond its sinks.
  SessionConfig dense{.window = 0, .sinks = 64, .n_seq_max = 3};
  SessionConfig packed = dense;
  packed.kv = "kivi2";
  Session a(model_, dense);
  Session b(model_, packed);
  for (int seq : {0, 1}) {
    const std::vector<int32_t> tokens = tiny_tokens(64, 10 + seq);
    EXPECT_TRUE(identical(a.decode(tokens, 0, seq), b.decode(tokens, 0, seq)));
  }
  const std::vector<int32_t> tokens = tiny_tokens(160, 12);
  EXPECT_EQ(first_difference(a.decode(tokens, 0, 2), b.decode(tokens, 0, 2)), 127);
}

TEST_F(ReadSemantics, OverwrittenSinksAreSinksNoMore) {
  // Sequence 0 fills block 0 with sinks and goes; rows of sequence 1 beyond its own sinks take the
  // cells, and with no window the block is read packed from its last row on.
  SessionConfig dense{.window = 0, .sinks = kBlock, .n_seq_max = 2};
  SessionConfig packed = dense;
  packed.kv = "kivi2";
  Session a(model_, dense);
  Session b(model_, packed);
  const std::vector<int32_t> tokens = tiny_tokens(200, 30);
  for (Session* session : {&a, &b}) {
    session->decode(tiny_tokens(kBlock, 31), 0, 0);
    session->decode(std::span(tokens).first(100), 0, 1);
    ASSERT_TRUE(llama_memory_seq_rm(session->memory(), 0, -1, -1));
  }
  const std::span<const int32_t> rest = std::span(tokens).subspan(100, 80);
  EXPECT_EQ(first_difference(a.decode(rest, 100, 1), b.decode(rest, 100, 1)), kBlock - 1);
}

TEST_F(ReadSemantics, StreamsHaveTheirOwnStamps) {
  // Rows written to another stream make no cell of this one older.
  SessionConfig dense{.n_ctx = 1024, .n_seq_max = 2, .unified = false};
  SessionConfig packed = dense;
  packed.kv = "kivi2";
  Session a(model_, dense);
  Session b(model_, packed);
  const std::vector<int32_t> first = tiny_tokens(kBlock, 20);
  a.decode(first, 0, 0);
  b.decode(first, 0, 0);
  a.decode(tiny_tokens(200, 21), 0, 1);
  b.decode(tiny_tokens(200, 21), 0, 1);
  const std::vector<int32_t> next = tiny_tokens(100, 22);
  EXPECT_EQ(first_difference(a.decode(next, kBlock, 0), b.decode(next, kBlock, 0)), 31);
}

TEST_F(ReadSemantics, OneStreamCountsAllItsSequences) {
  // In a unified cache the rows of another sequence do age the cells.
  SessionConfig dense{.n_seq_max = 2};
  SessionConfig packed = dense;
  packed.kv = "kivi2";
  Session a(model_, dense);
  Session b(model_, packed);
  const std::vector<int32_t> first = tiny_tokens(kBlock, 20);
  a.decode(first, 0, 0);
  b.decode(first, 0, 0);
  a.decode(tiny_tokens(40, 21), 0, 1);
  b.decode(tiny_tokens(40, 21), 0, 1);
  const std::vector<int32_t> next = tiny_tokens(1, 22);
  EXPECT_FALSE(identical(a.decode(next, kBlock, 0), b.decode(next, kBlock, 0)));
}

}  // namespace
}  // namespace headq::testing
