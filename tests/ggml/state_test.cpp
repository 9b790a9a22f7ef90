// Saving and restoring: whole contexts, single sequences, files, and the CPU backend's format.
#include <gtest/gtest.h>

#include <filesystem>

#include "ggml/compare.h"
#include "ggml/families.h"
#include "ggml/session.h"

namespace headq::testing {
namespace {

constexpr int kPrompt = 230;  // three full blocks and an open one

const std::vector<int32_t>& prompt() {
  static const std::vector<int32_t> tokens = tiny_tokens(kPrompt, 1);
  return tokens;
}
const std::vector<int32_t>& next() {
  static const std::vector<int32_t> tokens = tiny_tokens(40, 2);
  return tokens;
}

// Decodes the prompt, its last rows one by one: rows that have been packed are dropped by then.
void decode_prompt(Session& session) {
  session.decode(std::span(prompt()).first(kPrompt - 4));
  session.decode_one_by_one(std::span(prompt()).last(4), kPrompt - 4);
}

// Error that continuing adds when a state went from one session into the other.
double continuation_error(Session& saved, Session& restored) {
  return relative_error(saved.decode(next(), kPrompt), restored.decode(next(), kPrompt));
}

using StateFamily = EachFamily;
HEADQ_FOR_EACH_FAMILY(StateFamily);

TEST_P(StateFamily, RestoredSequenceContinuesLikeTheSavedOne) {
  const Model model({.family = GetParam()}, Backend::kHeadq);
  for (const char* kv : {"dense", "kivi2", "kivi4", "kivi8"}) {
    SCOPED_TRACE(kv);
    Session saved(model, {.kv = kv});
    decode_prompt(saved);
    Session restored(model, {.kv = kv});
    ASSERT_TRUE(restored.load_seq(saved.save_seq(0), 0));
    // A window cache saves its window alone, so restored rows get other cells and other neighbours
    // in their blocks.
    const bool same_blocks = std::string(kv) == "dense" || !has_window(GetParam());
    const double tolerance = same_blocks ? 1e-4 : std::string(kv) == "kivi8" ? 1e-2 : 0.3;
    EXPECT_LE(continuation_error(saved, restored), tolerance);
  }
}

TEST_P(StateFamily, RestoredContextContinuesLikeTheSavedOne) {
  const Model model({.family = GetParam()}, Backend::kHeadq);
  for (const auto& [kv, tolerance] : {std::pair("dense", 1e-4), std::pair("kivi2/kivi4", 1e-4),
                                      std::pair("token2h/token4h", 2e-3),
                                      std::pair("kivi2/kivi2+a2", 1e-4)}) {
    SCOPED_TRACE(kv);
    Session saved(model, {.kv = kv});
    decode_prompt(saved);
    Session restored(model, {.kv = kv});
    ASSERT_TRUE(restored.load_all(saved.save_all()));
    EXPECT_LE(continuation_error(saved, restored), tolerance);
  }
}

// Share of bytes that differ; 1 when the sizes do.
double share_of_unlike_bytes(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  if (a.size() != b.size()) return 1.0;
  size_t n = 0;
  for (size_t i = 0; i < a.size(); ++i) n += a[i] != b[i];
  return static_cast<double>(n) / static_cast<double>(a.size());
}

TEST_P(StateFamily, SecondSaveHasTheSameBytes) {
  // Decoded rows are rounded to f16, so a few scales come back off by their last bit.
  const Model model({.family = GetParam()}, Backend::kHeadq);
  for (const char* kv : {"dense", "kivi2", "kivi4", "kivi8", "token4"}) {
    SCOPED_TRACE(kv);
    Session saved(model, {.kv = kv, .swa_full = true});
    decode_prompt(saved);
    const std::vector<uint8_t> bytes = saved.save_all();
    Session restored(model, {.kv = kv, .swa_full = true});
    ASSERT_TRUE(restored.load_all(bytes));
    EXPECT_LE(share_of_unlike_bytes(bytes, restored.save_all()),
              kv == std::string("dense") ? 0.0 : 2e-3);
  }
}

TEST_P(StateFamily, CpuStateLoadsIntoThePluginAndBack) {
  const TinyModelConfig config{.family = GetParam()};
  const Model cpu(config, Backend::kCpu);
  const Model model(config, Backend::kHeadq);
  Session source(cpu, {});
  source.decode(prompt());
  const std::vector<uint8_t> bytes = source.save_seq(0);
  Session plugin(model, {});
  ASSERT_TRUE(plugin.load_seq(bytes, 0));
  EXPECT_TRUE(bytes == plugin.save_seq(0));
  Session back(cpu, {});
  ASSERT_TRUE(back.load_seq(plugin.save_seq(0), 0));
  const Logits expected = source.decode(next(), kPrompt);
  EXPECT_TRUE(identical(expected, back.decode(next(), kPrompt)));
  EXPECT_LE(relative_error(expected, plugin.decode(next(), kPrompt)), 3e-3);
}

class State : public ::testing::Test {
 protected:
  State() : model_({.family = TinyFamily::kLlama}, Backend::kHeadq) {}
  Model model_;
};

TEST_F(State, CpuStateLoadsIntoAPackedCache) {
  const Model cpu({.family = TinyFamily::kLlama}, Backend::kCpu);
  Session source(cpu, {});
  source.decode(prompt());
  Session packed(model_, {.kv = "kivi8"});
  ASSERT_TRUE(packed.load_seq(source.save_seq(0), 0));
  EXPECT_LE(mean_kld(source.decode(next(), kPrompt), packed.decode(next(), kPrompt)), 1e-4);
}

TEST_F(State, SavedPackedRowsAreTheDecodedOnes) {
  // A state of kivi2 in a dense cache answers like kivi2, not like the rows that were coded.
  Session packed(model_, {.kv = "kivi2"});
  decode_prompt(packed);
  Session dense(model_, {});
  ASSERT_TRUE(dense.load_seq(packed.save_seq(0), 0));
  Session uncoded(model_, {});
  decode_prompt(uncoded);
  const Logits coded = packed.decode(next(), kPrompt);
  const double near = mean_kld(coded, dense.decode(next(), kPrompt));
  const double far = mean_kld(coded, uncoded.decode(next(), kPrompt));
  EXPECT_LT(near, 0.3 * far);
}

TEST_P(StateFamily, RestoredSideCodesContinueLikeTheSavedOnes) {
  // A saved key is its base code plus the side code's correction; taking it back must find both.
  const Model model({.family = GetParam(), .head_dim = 64}, Backend::kHeadq);
  for (const char* kv : {"kivi2+hq4x4@random", "token4h+hq4x4@random"}) {
    SCOPED_TRACE(kv);
    const SessionConfig config{.kv = kv, .swa_full = true};
    Session saved(model, config);
    decode_prompt(saved);
    Session restored(model, config);
    ASSERT_TRUE(restored.load_all(saved.save_all()));
    EXPECT_LE(continuation_error(saved, restored), 5e-3);
  }
}

TEST_F(State, RestoredSideCodesOfHalfTheDimensionsAddLittleDamage) {
  // With 16 of 32 dimensions corrected, the base code of a restored row is not always found again.
  Session dense(model_, {});
  decode_prompt(dense);
  Session saved(model_, {.kv = "kivi2+hq16x4@random/dense"});
  decode_prompt(saved);
  Session restored(model_, {.kv = "kivi2+hq16x4@random/dense"});
  ASSERT_TRUE(restored.load_seq(saved.save_seq(0), 0));
  const Logits expected = dense.decode(next(), kPrompt);
  const double damage = mean_kld(expected, saved.decode(next(), kPrompt));
  EXPECT_LE(mean_kld(expected, restored.decode(next(), kPrompt)), 1.6 * damage);
}

TEST_F(State, ManyRoundTripsDoNotDrift) {
  const Model model({.family = TinyFamily::kLlama, .head_dim = 64}, Backend::kHeadq);
  for (const char* kv : {"kivi2", "kivi8", "token2h", "kivi2+hq4x4@random"}) {
    SCOPED_TRACE(kv);
    Session saved(model, {.kv = kv});
    decode_prompt(saved);
    std::vector<uint8_t> state = saved.save_seq(0);
    for (int round = 0; round < 6; ++round) {
      Session between(model, {.kv = kv});
      ASSERT_TRUE(between.load_seq(state, 0));
      state = between.save_seq(0);
    }
    Session restored(model, {.kv = kv});
    ASSERT_TRUE(restored.load_seq(state, 0));
    EXPECT_LE(continuation_error(saved, restored), 5e-3);
  }
}

TEST_F(State, FilesHoldTheState) {
  const std::string path = scratch_dir() + "/state.bin";
  for (const char* kv : {"dense", "kivi2"}) {
    SCOPED_TRACE(kv);
    Session saved(model_, {.kv = kv});
    decode_prompt(saved);
    ASSERT_TRUE(llama_state_save_file(saved.raw(), path.c_str(), prompt().data(), kPrompt));
    Session restored(model_, {.kv = kv});
    std::vector<llama_token> tokens(kPrompt + 1);
    size_t n_tokens = 0;
    ASSERT_TRUE(llama_state_load_file(restored.raw(), path.c_str(), tokens.data(), tokens.size(),
                                      &n_tokens));
    EXPECT_EQ(n_tokens, static_cast<size_t>(kPrompt));
    EXPECT_LE(continuation_error(saved, restored), 1e-4);
  }
}

TEST_F(State, SequenceMovesToAnotherStream) {
  for (const bool unified : {true, false}) {
    for (const char* kv : {"dense", "kivi8"}) {
      SCOPED_TRACE(std::string(kv) + (unified ? " unified" : " streams"));
      const SessionConfig config{.kv = kv, .n_ctx = 1024, .n_seq_max = 2, .unified = unified};
      Session session(model_, config);
      session.decode(tiny_tokens(77, 5), 0, 1);
      session.decode(prompt(), 0, 0);
      ASSERT_TRUE(session.load_seq(session.save_seq(0), 1));
      const Logits expected = session.decode(next(), kPrompt, 0);
      EXPECT_LE(mean_kld(expected, session.decode(next(), kPrompt, 1)), 1e-4);
    }
  }
}

TEST_F(State, TruncatedStateIsRefused) {
  Session saved(model_, {.kv = "kivi2"});
  saved.decode(prompt());
  std::vector<uint8_t> bytes = saved.save_seq(0);
  bytes.resize(bytes.size() / 2);
  Session restored(model_, {.kv = "kivi2"});
  EXPECT_FALSE(restored.load_seq(bytes, 0));
}

}  // namespace
}  // namespace headq::testing
