// Codes of nib, fitted to each family's own keys and values, in the real libllama.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>

#include "ggml/calibrated.h"
#include "ggml/compare.h"
#include "ggml/families.h"
#include "ggml/session.h"
#include "headq/profile.h"

namespace headq::testing {
namespace {

using ::testing::HasSubstr;

constexpr const char* kNib = "nib2.5/nib2";
constexpr int kTokens = 400;
constexpr int kPrompt = 380;  // the rest is decoded one by one
// Sliding windows end within the 400 tokens, but not within the 230 whose state is saved: a state
// has no rows from before the window, and what comes first in it is then kept dense in place of
// sinks.
constexpr int kWindow = 256;

std::vector<int32_t> concat(std::vector<int32_t> a, const std::vector<int32_t>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Logits tail(const Logits& logits, int n) {
  return logits.rows(logits.n_rows() - n, logits.n_rows());
}

// A model and its profile, made once in this program.
class Calibrated {
 public:
  static const Calibrated& of(TinyFamily family) {
    static std::map<TinyFamily, std::unique_ptr<Calibrated>> all;
    std::unique_ptr<Calibrated>& one = all[family];
    if (one == nullptr) one.reset(new Calibrated(family));
    return *one;
  }

  const Model& model() const { return model_; }
  const std::string& profile() const { return profile_; }
  SessionConfig config(const std::string& kv = kNib) const {
    return {.kv = kv, .profile = profile_};
  }
  double kld(const SessionConfig& session) const {
    return mean_kld(dense_, run(model_, session, tokens_, kPrompt));
  }

 private:
  explicit Calibrated(TinyFamily family)
      : model_({.family = family, .n_swa = kWindow}, Backend::kHeadq),
        profile_(calibrate(model_, to_string(family), kNib)),
        tokens_(tiny_tokens(kTokens, 7)),
        dense_(run(model_, {}, tokens_, kPrompt)) {}

  Model model_;
  std::string profile_;
  std::vector<int32_t> tokens_;
  Logits dense_;
};

class NibFamily : public EachFamily {
 protected:
  const Calibrated& calibrated() const { return Calibrated::of(GetParam()); }
  const Model& model() const { return calibrated().model(); }
  SessionConfig nib() const { return calibrated().config(); }
};
HEADQ_FOR_EACH_FAMILY(NibFamily);

TEST_P(NibFamily, DoesLessDamageThanMinMaxAtTheSameBits) {
  const double kld = calibrated().kld(nib());
  EXPECT_GT(kld, 1e-5);  // something was coded
  EXPECT_LT(kld, 0.3 * calibrated().kld({.kv = "kivi2"}));
}

TEST_P(NibFamily, SubtractingTheLastNibblesHurts) {
  EXPECT_GT(calibrated().kld(calibrated().config("nib2.5-last8/nib2")),
            1.5 * calibrated().kld(nib()));
}

TEST_P(NibFamily, RestoredStatesContinueWithTheSameBits) {
  SessionConfig config = nib();
  const std::vector<int32_t> prompt = tiny_tokens(230, 1), next = tiny_tokens(40, 2);
  Session saved(model(), config);
  saved.decode(std::span(prompt).first(226));
  saved.decode_one_by_one(std::span(prompt).last(4), 226);
  const std::vector<uint8_t> all = saved.save_all(), one = saved.save_seq(0);
  const Logits expected = saved.decode(next, 230);
  Session whole(model(), config), sequence(model(), config);
  ASSERT_TRUE(whole.load_all(all));
  ASSERT_TRUE(sequence.load_seq(one, 0));
  EXPECT_TRUE(whole.save_all() == all);
  EXPECT_TRUE(identical(expected, whole.decode(next, 230)));
  EXPECT_TRUE(identical(expected, sequence.decode(next, 230)));
}

TEST_P(NibFamily, CopiedSequencesContinueLikeTheOriginal) {
  const std::vector<int32_t> shared = tiny_tokens(150, 1), next = tiny_tokens(30, 2);
  SessionConfig config = nib();
  config.n_ctx = 1024;
  config.n_seq_max = 2;
  config.unified = false;
  Session streams(model(), config);
  streams.decode(shared, 0, 0);
  llama_memory_seq_cp(streams.memory(), 0, 1, -1, -1);
  const Logits copied = streams.decode(next, 150, 1);
  EXPECT_TRUE(identical(streams.decode(next, 150, 0), copied));

  config.unified = true;
  Session one_stream(model(), config);
  one_stream.decode(shared, 0, 0);
  llama_memory_seq_cp(one_stream.memory(), 0, 1, -1, -1);
  const Logits expected = run(model(), nib(), concat(shared, next), 180);
  EXPECT_LE(relative_error(tail(expected, 30), one_stream.decode(next, 150, 1)), 2e-3);
}

// With no window a row's age does not matter, and the removed rows shared no packed block.
TEST_P(NibFamily, ARemovedTailLeavesNoTrace) {
  SessionConfig config = nib();
  config.window = 0;
  const std::vector<int32_t> kept = tiny_tokens(132, 1), next = tiny_tokens(90, 3);
  Session session(model(), config);
  session.decode(concat(kept, tiny_tokens(25, 2)));
  ASSERT_TRUE(llama_memory_seq_rm(session.memory(), 0, 132, -1));
  const Logits expected = run(model(), config, concat(kept, next), 222);
  EXPECT_LE(relative_error(tail(expected, 90), session.decode(next, 132)), 2e-3);
}

TEST_P(NibFamily, ShiftedKeysFollow) {
  const auto shift_and_decode = [&](SessionConfig config) {
    config.swa_full = true;  // llama.cpp shifts window caches of full size only
    Session session(model(), config);
    session.decode(tiny_tokens(200, 1));
    EXPECT_TRUE(llama_memory_can_shift(session.memory()));
    EXPECT_TRUE(llama_memory_seq_rm(session.memory(), 0, 4, 94));
    llama_memory_seq_add(session.memory(), 0, 94, 200, -90);
    return session.decode(tiny_tokens(30, 2), 110);
  };
  const Logits dense = shift_and_decode({});
  const double kld = mean_kld(dense, shift_and_decode(nib()));
  EXPECT_GT(kld, 1e-5);
  // Both codecs quantise turned keys a second time, so nib keeps its distance.
  EXPECT_LT(kld, 0.3 * mean_kld(dense, shift_and_decode({.kv = "kivi2"})));
}

TEST_P(NibFamily, MicrobatchesAndThreadsDoNotMatter) {
  const std::vector<int32_t> tokens = tiny_tokens(300, 5);
  const auto logits = [&](int n_ubatch, int n_threads) {
    SessionConfig config = nib();
    config.n_ubatch = n_ubatch;
    config.n_threads = n_threads;
    return run(model(), config, tokens, 292);
  };
  const Logits whole = logits(512, 1);
  EXPECT_TRUE(identical(whole, logits(512, 2)));
  // Matrix products of other row counts round otherwise, which may tip a row to other nibbles.
  EXPECT_LE(relative_error(whole, logits(64, 1)), 2e-3);
}

TEST(Nib, AProfileOfAnotherRateIsRefused) {
  const Calibrated& llama = Calibrated::of(TinyFamily::kLlama);
  const Profile profile = Profile::load(llama.profile());
  for (const char* kv : {"nib2", "nib2.5@random/nib2", "nib2.5/nib4"}) {
    EXPECT_EQ(Session::try_open(llama.model(), llama.config(kv)), nullptr) << kv;
    EXPECT_THAT(Plugin::get().last_error(), HasSubstr(profile.why_lacks(KvSpec::parse(kv))));
  }
  EXPECT_NE(Session::try_open(llama.model(), llama.config()), nullptr);
}

TEST(Nib, PackedBytesAreItsRate) {
  const Calibrated& llama = Calibrated::of(TinyFamily::kLlama);
  SessionConfig config = llama.config();
  config.window = config.sinks = 0;
  Session session(llama.model(), config);
  session.feed(tiny_tokens(256, 1));
  const headq_stats stats = session.stats();
  const double bits =
      8.0 * static_cast<double>(stats.packed_bytes) / static_cast<double>(stats.packed_elements);
  EXPECT_DOUBLE_EQ(bits, (2.5 + 2.0) / 2);
}

TEST(Nib, CalibratedBasesBeatRandomOnes) {
  const Calibrated& llama = Calibrated::of(TinyFamily::kLlama);
  const std::string kv = "nib2.5@random/nib2@random";
  const std::string profile = calibrate(llama.model(), "random", kv);
  EXPECT_LT(llama.kld(llama.config()), 0.9 * llama.kld({.kv = kv, .profile = profile}));
}

}  // namespace
}  // namespace headq::testing
