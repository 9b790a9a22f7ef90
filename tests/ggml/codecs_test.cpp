// Every codec through the real libllama.
#include <gtest/gtest.h>

#include "ggml/compare.h"
#include "ggml/families.h"
#include "ggml/session.h"

namespace headq::testing {
namespace {

constexpr int kPrompt = 250;
constexpr int kTokens = 300;

// KLD of codecs against the plugin's dense rows, one model and one text.
class Damage {
 public:
  explicit Damage(const TinyModelConfig& config)
      : model_(config, Backend::kHeadq),
        tokens_(tiny_tokens(kTokens, config.seed)),
        dense_(run(model_, {}, tokens_, kPrompt)) {}

  Logits logits(const SessionConfig& session) const {
    return run(model_, session, tokens_, kPrompt);
  }
  double kld(const std::string& kv) const { return mean_kld(dense_, logits({.kv = kv})); }
  const Logits& dense() const { return dense_; }

 private:
  Model model_;
  std::vector<int32_t> tokens_;
  Logits dense_;
};

using CodecFamily = EachFamily;
HEADQ_FOR_EACH_FAMILY(CodecFamily);

TEST_P(CodecFamily, DamageFallsWithBits) {
  const Damage damage({.family = GetParam(), .n_swa = 160});
  const double kivi2 = damage.kld("kivi2");
  const double kivi4 = damage.kld("kivi4");
  const double kivi8 = damage.kld("kivi8");
  EXPECT_LT(kivi8, 0.1 * kivi4);
  EXPECT_LT(kivi4, 0.3 * kivi2);
  EXPECT_LT(kivi8, 1e-4);
  EXPECT_GT(kivi2, 3e-3);
}

TEST_P(CodecFamily, EveryCodecStaysFiniteAndDoesDamage) {
  const Damage damage({.family = GetParam(), .n_swa = 160});
  for (const char* kv : {"token2", "token2h", "token4", "token4h", "kivi2+hq4x4@random",
                         "kivi2-hq4x4@random", "kivi4+hq16x4@random:7", "token2+hq8x4@random",
                         "kivi2/token4h", "token4/kivi2", "dense/kivi2", "kivi2/dense", "kivi2+a2",
                         "dense/kivi2+a2@random"}) {
    SCOPED_TRACE(kv);
    const Logits logits = damage.logits({.kv = kv});
    EXPECT_TRUE(all_finite(logits));
    const double kld = mean_kld(damage.dense(), logits);
    EXPECT_GT(kld, 1e-7);
    EXPECT_LT(kld, 5.0);
  }
}

TEST(Codecs, TokenDamageFallsWithBits) {
  const Damage damage({.family = TinyFamily::kLlama});
  EXPECT_LT(damage.kld("token4"), 0.3 * damage.kld("token2"));
}

TEST(Codecs, SideCodeHelpsAndItsWrongSignHurts) {
  const Damage damage({.family = TinyFamily::kLlama});
  // 16 of 32 dimensions in a random basis hold half of the error's score on average.
  const double plain = damage.kld("kivi2/dense");
  EXPECT_LT(damage.kld("kivi2+hq16x4@random/dense"), 0.8 * plain);
  EXPECT_GT(damage.kld("kivi2-hq16x4@random/dense"), 1.2 * plain);
}

TEST(Codecs, SeedChoosesTheRandomBasis) {
  const Damage damage({.family = TinyFamily::kLlama});
  const Logits one = damage.logits({.kv = "kivi2+hq4x4@random:1/dense"});
  EXPECT_TRUE(identical(one, damage.logits({.kv = "kivi2+hq4x4@random:1/dense"})));
  EXPECT_FALSE(identical(one, damage.logits({.kv = "kivi2+hq4x4@random:2/dense"})));
}

TEST(Codecs, LayerOverrideAppliesToItsLayerAlone) {
  const Damage damage({.family = TinyFamily::kLlama, .n_layer = 2});
  const Logits first = damage.logits({.kv_layer = "0:kivi2/kivi2"});
  const Logits second = damage.logits({.kv_layer = "1:kivi2/kivi2"});
  const Logits both = damage.logits({.kv = "kivi2"});
  EXPECT_FALSE(identical(first, damage.dense()));
  EXPECT_FALSE(identical(second, damage.dense()));
  EXPECT_FALSE(identical(first, second));
  EXPECT_TRUE(identical(both, damage.logits({.kv_layer = "0:kivi2,1:kivi2"})));
  EXPECT_TRUE(
      identical(damage.dense(), damage.logits({.kv = "kivi2", .kv_layer = "0:dense,1:dense"})));
}

// Matrix products of other row counts round otherwise, and a value on the edge of two codes may
// then take the other one. So packed caches agree less tightly than dense ones.
double batch_tolerance(const std::string& kv) { return kv == "dense" ? 1e-4 : 2e-3; }

using BatchFamily = EachFamily;
HEADQ_FOR_EACH_FAMILY(BatchFamily);

TEST_P(BatchFamily, MicrobatchSizeDoesNotMatter) {
  const Model model({.family = GetParam(), .n_swa = 100}, Backend::kHeadq);
  const std::vector<int32_t> tokens = tiny_tokens(kTokens, 3);
  for (const char* kv : {"dense", "kivi2", "kivi4+hq4x4@random/token4h", "kivi4/kivi2+a2"}) {
    SCOPED_TRACE(kv);
    const Logits whole = run(model, {.kv = kv, .n_ubatch = 512}, tokens, kTokens);
    const Logits halves = run(model, {.kv = kv, .n_ubatch = 64}, tokens, kTokens);
    const Logits odd = run(model, {.kv = kv, .n_ubatch = 37}, tokens, kTokens);
    EXPECT_LE(relative_error(whole, halves), batch_tolerance(kv));
    EXPECT_LE(relative_error(whole, odd), batch_tolerance(kv));
  }
}

// One token at a time reads codes by integer tables, a prompt by their coordinates, and every row
// written differs in rounding. Of 8 bits a code that flips moves its value by a 255th of the range; one of
// 2 bits would move it by a third, which in a tiny model shows.
TEST_P(BatchFamily, DecodingEqualsPrompting) {
  const Model model({.family = GetParam(), .n_swa = 100}, Backend::kHeadq);
  const std::vector<int32_t> tokens = tiny_tokens(200, 4);
  for (const char* kv : {"dense", "kivi8", "kivi8/dense", "dense/kivi8"}) {
    SCOPED_TRACE(kv);
    const Logits prompted = run(model, {.kv = kv}, tokens, 200);
    const Logits decoded = run(model, {.kv = kv}, tokens, 1);
    EXPECT_LE(relative_error(prompted, decoded), batch_tolerance(kv));
  }
}

TEST_P(BatchFamily, ThreadCountChangesNoBit) {
  const Model model({.family = GetParam()}, Backend::kHeadq);
  const std::vector<int32_t> tokens = tiny_tokens(kTokens, 5);
  constexpr int kDecoded = 8;
  for (const char* kv : {"dense", "kivi2", "kivi4+hq4x4@random/token4h", "kivi2+a2"}) {
    SCOPED_TRACE(kv);
    const auto logits = [&](int n_threads) {
      return run(model, {.kv = kv, .n_threads = n_threads}, tokens, kTokens - kDecoded);
    };
    const Logits one = logits(1);
    EXPECT_TRUE(identical(one, logits(2)));
    EXPECT_TRUE(identical(one, logits(3)));
  }
}

class CodecHeadDim : public ::testing::TestWithParam<int> {};

INSTANTIATE_TEST_SUITE_P(Dims, CodecHeadDim,
                         ::testing::Values(16, 20, 48, 64, 80, 96, 128, 192, 256),
                         ::testing::PrintToStringParamName());

TEST_P(CodecHeadDim, DamageFallsWithBits) {
  const Damage damage({.head_dim = GetParam(), .n_embd = 64});
  const double kivi2 = damage.kld("kivi2");
  const double kivi4 = damage.kld("kivi4");
  const double kivi8 = damage.kld("kivi8");
  EXPECT_LT(kivi8, 0.1 * kivi4);
  EXPECT_LT(kivi4, 0.3 * kivi2);
  EXPECT_LT(kivi8, 1e-4);
  const Logits rotated = damage.logits({.kv = "token4h+hq4x4@random/token4h"});
  EXPECT_TRUE(all_finite(rotated));
  EXPECT_LT(mean_kld(damage.dense(), rotated), kivi2);
}

}  // namespace
}  // namespace headq::testing
