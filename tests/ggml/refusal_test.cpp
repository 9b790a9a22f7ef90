// What the plugin cannot serve is refused when it is asked for, with a line that names the value
// and the limit.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>

#include "ggml/compare.h"
#include "ggml/session.h"

namespace headq::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

// The plugin's reason for refusing a context; "" when it is accepted.
std::string refusal(const TinyModelConfig& config, const SessionConfig& session) {
  const Model model(config, Backend::kHeadq);
  if (Session::try_open(model, session) != nullptr) return "";
  return Plugin::get().last_error();
}

TEST(Refusal, CacheTypesOtherThanF16) {
  EXPECT_THAT(refusal({.head_dim = 64}, {.type_kv = GGML_TYPE_Q8_0}),
              AllOf(HasSubstr("q8_0"), HasSubstr("f16")));
  EXPECT_THAT(refusal({.head_dim = 64}, {.type_kv = GGML_TYPE_F32}),
              AllOf(HasSubstr("f32"), HasSubstr("f16")));
}

TEST(Refusal, FlashAttentionOff) {
  EXPECT_THAT(refusal({}, {.flash_attn = false}), HasSubstr("-fa on"));
}

TEST(Refusal, HeadDimensionsOutOfRange) {
  EXPECT_THAT(refusal({.head_dim = 12, .n_embd = 64}, {}), AllOf(HasSubstr("12"), HasSubstr("16")));
  EXPECT_THAT(refusal({.head_dim = 260, .n_embd = 64}, {}),
              AllOf(HasSubstr("260"), HasSubstr("256")));
  EXPECT_THAT(refusal({.head_dim = 16, .n_embd = 64}, {}), IsEmpty());
  EXPECT_THAT(refusal({.head_dim = 256, .n_embd = 64}, {}), IsEmpty());
}

TEST(Refusal, LayersThatShareACache) {
  // Nothing in a context tells that a layer reads another one's cache, so it shows with the first
  // batch: llama.cpp's scheduler copies the cache to the CPU backend. That batch must not look
  // fine, and no later one may run.
  const Model model({.family = TinyFamily::kGemma4}, Backend::kHeadq);
  Session session(model, {.kv = "kivi2"});
  const Logits first = session.decode(tiny_tokens(20, 1));
  EXPECT_TRUE(
      std::all_of(first.data.begin(), first.data.end(), [](float x) { return std::isnan(x); }));
  EXPECT_THAT(Plugin::get().last_error(), HasSubstr("share a KV cache"));
  EXPECT_THROW(session.decode(tiny_tokens(1, 2), 20), std::runtime_error);
  EXPECT_THROW(session.decode(tiny_tokens(1, 2), 20), std::runtime_error);
}

// What headq_configure says to one change of the defaults.
std::string configure(const std::function<void(headq_options&)>& change) {
  headq_options options = {"", "", "", 32, 4};
  change(options);
  return Plugin::get().configure(options);
}
std::string configure_kv(const char* kv) {
  return configure([&](headq_options& o) { o.kv = kv; });
}

TEST(Refusal, SpecsThatAreNone) {
  EXPECT_THAT(configure_kv("kivi5"), HasSubstr("kivi5"));
  EXPECT_THAT(configure_kv("kivi2/kivi2+hq4x4"), HasSubstr("kivi2+hq4x4"));
  EXPECT_THAT(configure_kv("kivi2 "), HasSubstr("kivi2 "));
  EXPECT_THAT(configure([](headq_options& o) { o.kv_layer = "x:kivi2"; }), HasSubstr("x:kivi2"));
}

TEST(Refusal, WindowsAndSinksOutOfRange) {
  EXPECT_THAT(configure([](headq_options& o) { o.window = 4097; }),
              AllOf(HasSubstr("4097"), HasSubstr("4096")));
  EXPECT_THAT(configure([](headq_options& o) { o.window = -1; }), HasSubstr("-1"));
  EXPECT_THAT(configure([](headq_options& o) { o.sinks = 65; }),
              AllOf(HasSubstr("65"), HasSubstr("64")));
}

TEST(Refusal, ProfilesThatAreNone) {
  const std::string missing = scratch_dir() + "/missing.gguf";
  EXPECT_THAT(configure([&](headq_options& o) { o.profile = missing.c_str(); }),
              HasSubstr("missing.gguf"));
  const std::string broken = scratch_dir() + "/broken.gguf";
  std::ofstream(broken) << "GGUF but not really";
  EXPECT_THAT(configure([&](headq_options& o) { o.profile = broken.c_str(); }),
              HasSubstr("broken.gguf"));
}

TEST(Refusal, CodecsThatNeedAProfileWithoutOne) {
  for (const char* kv : {"kivi2+hq4x4", "kivi3", "token4c/token4"}) {
    std::string error = configure_kv(kv);
    if (error.empty()) error = refusal({}, {.configure = false});
    EXPECT_THAT(error, HasSubstr("profile")) << kv;
  }
}

TEST(Refusal, RefusedConfigurationChangesNothing) {
  const Model model({.family = TinyFamily::kLlama}, Backend::kHeadq);
  const std::vector<int32_t> tokens = tiny_tokens(200, 1);
  const Logits expected = run(model, {.kv = "kivi2"}, tokens, 200);
  const uint32_t configuration = Plugin::get().configuration();
  EXPECT_THAT(configure([](headq_options& o) { o.kv = "nothing", o.window = 7; }), Not(IsEmpty()));
  EXPECT_EQ(Plugin::get().configuration(), configuration);
  EXPECT_TRUE(identical(expected, run(model, {.configure = false}, tokens, 200)));
}

TEST(Refusal, NullStringsMeanDefaults) {
  const Model model({.family = TinyFamily::kLlama}, Backend::kHeadq);
  const std::vector<int32_t> tokens = tiny_tokens(200, 1);
  const Logits dense = run(model, {}, tokens, 200);
  ASSERT_THAT(Plugin::get().configure({nullptr, nullptr, nullptr, 32, 4}), IsEmpty());
  EXPECT_TRUE(identical(dense, run(model, {.configure = false}, tokens, 200)));
}

TEST(Refusal, RefusedContextDoesNotSpoilTheNext) {
  EXPECT_THAT(refusal({.head_dim = 64}, {.type_kv = GGML_TYPE_Q8_0}), Not(IsEmpty()));
  const Model model({.family = TinyFamily::kLlama}, Backend::kHeadq);
  EXPECT_TRUE(all_finite(run(model, {.kv = "kivi2"}, tiny_tokens(200, 1), 200)));
}

}  // namespace
}  // namespace headq::testing
