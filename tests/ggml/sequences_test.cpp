// Sequence operations: remove, copy, keep, clear, interleaving, and reuse of cells.
#include <gtest/gtest.h>

#include <algorithm>

#include "ggml/compare.h"
#include "ggml/families.h"
#include "ggml/session.h"

namespace headq::testing {
namespace {

// Of the logits' RMS. Matrix products of other row counts round otherwise, and a value on the edge
// of two codes may then take the other one.
constexpr double kRounding = 1e-4;
double rounding(const std::string& kv) { return kv == "dense" ? kRounding : 20 * kRounding; }
// Cells that share a block share key scales. Where a law compares caches whose blocks hold other
// neighbours, the finest codec must still be this near (KLD).
constexpr double kNearKld = 1e-4;

std::vector<int32_t> concat(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The last n rows.
Logits tail(const Logits& logits, int n) {
  return logits.rows(logits.n_rows() - n, logits.n_rows());
}

using SequenceFamily = EachFamily;
HEADQ_FOR_EACH_FAMILY(SequenceFamily);

TEST_P(SequenceFamily, RemovedTailLeavesNoTraceInDenseRows) {
  const Model model({.family = GetParam(), .n_swa = 160}, Backend::kHeadq);
  const std::vector<int32_t> kept = tiny_tokens(130, 1);
  const std::vector<int32_t> next = tiny_tokens(20, 3);
  Session session(model, {});
  session.decode(concat(kept, tiny_tokens(25, 2)));
  ASSERT_TRUE(llama_memory_seq_rm(session.memory(), 0, 130, -1));
  const Logits expected = run(model, {}, concat(kept, next), 150);
  EXPECT_LE(relative_error(tail(expected, 20), session.decode(next, 130)), kRounding);
}

TEST_P(SequenceFamily, CopyInOneStreamContinuesLikeTheOriginal) {
  const Model model({.family = GetParam(), .n_swa = 160}, Backend::kHeadq);
  const std::vector<int32_t> shared = tiny_tokens(150, 1);
  const std::vector<int32_t> next = tiny_tokens(30, 2);
  for (const char* kv : {"dense", "kivi2"}) {
    SCOPED_TRACE(kv);
    Session session(model, {.kv = kv, .n_seq_max = 2});
    session.decode(shared, 0, 0);
    llama_memory_seq_cp(session.memory(), 0, 1, -1, -1);
    const Logits expected = run(model, {.kv = kv}, concat(shared, next), 180);
    EXPECT_LE(relative_error(tail(expected, 30), session.decode(next, 150, 1)), rounding(kv));
  }
}

TEST_P(SequenceFamily, CopyAcrossStreamsContinuesLikeTheOriginal) {
  const Model model({.family = GetParam(), .n_swa = 160}, Backend::kHeadq);
  const std::vector<int32_t> shared = tiny_tokens(150, 1);
  const std::vector<int32_t> next = tiny_tokens(30, 2);
  for (const char* kv : {"dense", "kivi2", "kivi4+hq4x4@random/token4h", "kivi2+a2"}) {
    SCOPED_TRACE(kv);
    Session session(model, {.kv = kv, .n_ctx = 1024, .n_seq_max = 2, .unified = false});
    session.decode(shared, 0, 0);
    llama_memory_seq_cp(session.memory(), 0, 1, -1, -1);
    const Logits copied = session.decode(next, 150, 1);
    const Logits original = session.decode(next, 150, 0);
    EXPECT_LE(relative_error(original, copied), rounding(kv));
  }
}

TEST_P(SequenceFamily, InterleavedStreamsEqualLoneSequences) {
  const Model model({.family = GetParam(), .n_swa = 160}, Backend::kHeadq);
  for (const char* kv : {"dense", "kivi2", "kivi4/kivi2+a2"}) {
    SCOPED_TRACE(kv);
    const SessionConfig config{
        .kv = kv, .n_ctx = 1536, .n_ubatch = 64, .n_seq_max = 3, .unified = false};
    std::vector<std::vector<int32_t>> texts;
    std::vector<Row> rows;
    for (int seq = 0; seq < 3; ++seq) texts.push_back(tiny_tokens(110 + 40 * seq, 1 + seq));
    for (int i = 0; i < 190; ++i) {
      for (int seq = 0; seq < 3; ++seq) {
        if (i < static_cast<int>(texts[seq].size())) rows.push_back({texts[seq][i], i, seq});
      }
    }
    Session session(model, config);
    const Logits mixed = session.decode(rows);
    for (int seq = 0; seq < 3; ++seq) {
      const int n = static_cast<int>(texts[seq].size());
      Logits own;
      for (size_t r = 0; r < rows.size(); ++r) {
        if (rows[r].seq == seq)
          own.append(mixed.rows(static_cast<int>(r), static_cast<int>(r) + 1));
      }
      EXPECT_LE(relative_error(run(model, {.kv = kv}, texts[seq], n), own), rounding(kv));
    }
  }
}

class Sequences : public ::testing::Test {
 protected:
  Sequences() : model_({.family = TinyFamily::kLlama}, Backend::kHeadq) {}

  // Three sequences whose rows alternate in one batch, and the row numbers of each.
  struct Mix {
    std::vector<std::vector<int32_t>> texts;
    std::vector<Row> rows;
  };
  static Mix alternate(int n) {
    Mix mix;
    for (int seq = 0; seq < 3; ++seq) mix.texts.push_back(tiny_tokens(n, 40 + seq));
    for (int i = 0; i < n; ++i) {
      for (int seq = 0; seq < 3; ++seq) mix.rows.push_back({mix.texts[seq][i], i, seq});
    }
    return mix;
  }
  static Logits of_sequence(const Logits& logits, int seq) {
    Logits own;
    for (int r = seq; r < logits.n_rows(); r += 3) own.append(logits.rows(r, r + 1));
    return own;
  }

  Model model_;
};

TEST_F(Sequences, AlternatingRowsOfOneStreamEqualLoneSequences) {
  const Mix mix = alternate(80);
  Session dense(model_, {.n_ctx = 256, .n_ubatch = 50, .n_seq_max = 3});
  Session fine(model_, {.kv = "kivi8", .n_ctx = 256, .n_ubatch = 50, .n_seq_max = 3});
  const Logits dense_logits = dense.decode(mix.rows);
  const Logits fine_logits = fine.decode(mix.rows);
  for (int seq = 0; seq < 3; ++seq) {
    const Logits alone = run(model_, {}, mix.texts[seq], 80);
    EXPECT_LE(relative_error(alone, of_sequence(dense_logits, seq)), kRounding);
    EXPECT_LE(mean_kld(alone, of_sequence(fine_logits, seq)), kNearKld);
  }
}

TEST_F(Sequences, RemovedTailOfAnOpenBlockLeavesNoTraceInPackedRows) {
  // With no window a row's age does not matter, and the removed rows shared no sealed block.
  const SessionConfig config{.kv = "kivi2", .window = 0};
  const std::vector<int32_t> kept = tiny_tokens(132, 1);
  const std::vector<int32_t> next = tiny_tokens(90, 3);
  Session session(model_, config);
  session.decode(concat(kept, tiny_tokens(25, 2)));  // blocks 0 and 1 full, block 2 open
  ASSERT_TRUE(llama_memory_seq_rm(session.memory(), 0, 132, -1));
  const Logits expected = run(model_, config, concat(kept, next), 222);
  EXPECT_LE(relative_error(tail(expected, 90), session.decode(next, 132)), rounding(config.kv));
}

TEST_F(Sequences, KeepFreesTheCellsOfTheOthers) {
  Session session(model_, {.n_ctx = 256, .n_seq_max = 2});
  const std::vector<int32_t> kept = tiny_tokens(40, 2);
  const std::vector<int32_t> next = tiny_tokens(200, 3);
  session.decode(tiny_tokens(200, 1), 0, 0);
  session.decode(kept, 0, 1);
  EXPECT_THROW(session.decode(next, 40, 1), std::runtime_error);
  llama_memory_seq_keep(session.memory(), 1);
  const Logits expected = run(model_, {}, concat(kept, next), 240);
  EXPECT_LE(relative_error(tail(expected, 200), session.decode(next, 40, 1)), kRounding);
}

TEST_F(Sequences, ClearedCacheIsAFreshOne) {
  const std::vector<int32_t> tokens = tiny_tokens(300, 2);
  for (const char* kv : {"dense", "kivi2", "kivi2+hq4x4@random/token2h"}) {
    SCOPED_TRACE(kv);
    Session session(model_, {.kv = kv});
    session.decode(tiny_tokens(400, 1));
    llama_memory_clear(session.memory(), true);
    Session fresh(model_, {.kv = kv});
    EXPECT_TRUE(identical(fresh.decode(tokens), session.decode(tokens)));
  }
}

TEST_F(Sequences, ClearedMetadataAloneLeavesOldCellsUnread) {
  const std::vector<int32_t> tokens = tiny_tokens(300, 2);
  for (const auto& [kv, bound] : {std::pair("dense", 1e-9), std::pair("kivi8", kNearKld)}) {
    SCOPED_TRACE(kv);
    Session session(model_, {.kv = kv});
    session.decode(tiny_tokens(400, 1));
    llama_memory_clear(session.memory(), false);
    EXPECT_LE(mean_kld(run(model_, {}, tokens, 300), session.decode(tokens)), bound);
  }
}

// Fills 250 of 256 cells, removes positions [begin, end), and writes 60 rows into the gap.
Logits refill_gap(const Model& model, SessionConfig config, int begin, int end) {
  config.n_ctx = 256;
  Session session(model, config);
  session.decode(tiny_tokens(250, 1));
  EXPECT_TRUE(llama_memory_seq_rm(session.memory(), 0, begin, end));
  const int pos = end == 250 ? begin : 250;  // positions of a sequence have no gap at their end
  const std::vector<int32_t> next = tiny_tokens(60, 2);
  Logits out = session.decode(std::span(next).first(40), pos);
  out.append(session.decode_one_by_one(std::span(next).subspan(40), pos + 40));
  return out;
}

class Overwriting : public ::testing::TestWithParam<std::pair<int, int>> {};

INSTANTIATE_TEST_SUITE_P(Gaps, Overwriting,
                         ::testing::Values(std::pair(64, 128), std::pair(70, 160),
                                           std::pair(0, 100), std::pair(130, 250)),
                         [](const auto& info) {
                           return std::to_string(info.param.first) + "to" +
                                  std::to_string(info.param.second);
                         });

TEST_P(Overwriting, NewRowsReplaceTheOldOnes) {
  const auto [begin, end] = GetParam();
  const Model cpu({.family = TinyFamily::kLlama}, Backend::kCpu);
  const Model model({.family = TinyFamily::kLlama}, Backend::kHeadq);
  const Logits exact = refill_gap(cpu, {.type_kv = GGML_TYPE_F32, .flash_attn = false}, begin, end);
  const Logits dense = refill_gap(model, {}, begin, end);
  EXPECT_LE(relative_error(exact, dense), 1e-3);
  EXPECT_LE(mean_kld(dense, refill_gap(model, {.kv = "kivi8"}, begin, end)), kNearKld);
  for (const char* kv : {"kivi2", "kivi2+hq4x4@random/token2h"}) {
    const Logits coarse = refill_gap(model, {.kv = kv}, begin, end);
    EXPECT_TRUE(all_finite(coarse));
    EXPECT_LT(mean_kld(dense, coarse), 2.0);
  }
}

TEST_F(Sequences, RefillingAgainAndAgainStaysNear) {
  // The same cells are packed, overwritten, and packed again six times.
  const SessionConfig config{.n_ctx = 256};
  SessionConfig fine_config = config;
  fine_config.kv = "kivi8";
  Session dense(model_, config);
  Session fine(model_, fine_config);
  for (int round = 0; round < 6; ++round) {
    const std::vector<int32_t> tokens = tiny_tokens(200 + 7 * round, 30 + round);
    EXPECT_LE(mean_kld(dense.decode(tokens), fine.decode(tokens)), kNearKld) << round;
    ASSERT_TRUE(llama_memory_seq_rm(dense.memory(), 0, -1, -1));
    ASSERT_TRUE(llama_memory_seq_rm(fine.memory(), 0, -1, -1));
  }
}

}  // namespace
}  // namespace headq::testing
