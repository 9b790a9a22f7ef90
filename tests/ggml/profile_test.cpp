// Codecs that need a profile, calibrated through the plugin's observer on the model itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "ggml/compare.h"
#include "ggml/families.h"
#include "ggml/session.h"
#include "headq/calibrate.h"

namespace headq::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kChunk = 500;
constexpr int kChunks = 3;

// Feeds what the observer sees to a Calibrator.
class Observer {
 public:
  explicit Observer(Calibrator& calibrator) : calibrator_(calibrator) {
    set(&Observer::on_attention);
  }
  ~Observer() { set(nullptr); }
  Observer(const Observer&) = delete;
  Observer& operator=(const Observer&) = delete;

  const std::set<int>& layers() const { return layers_; }
  int n_calls() const { return n_calls_; }

 private:
  void set(headq_observer_t observer) {
    Plugin::get().function<headq_set_observer_t>("headq_set_observer")(observer, this);
  }

  static void on_attention(const headq_observation* o, void* user) {
    static_cast<Observer*>(user)->add(*o);
  }

  void add(const headq_observation& o) {
    const auto floats = [](const float* data, int a, int b, int c) {
      return std::span<const float>(data, static_cast<size_t>(a) * b * c);
    };
    calibrator_.observe({.layer = o.layer,
                         .n_rows = o.n_rows,
                         .n_head = o.n_head,
                         .n_head_kv = o.n_head_kv,
                         .d_k = o.d_k,
                         .d_v = o.d_v,
                         .scale = o.scale,
                         .q = floats(o.q, o.n_rows, o.n_head, o.d_k),
                         .k = floats(o.k, o.n_rows, o.n_head_kv, o.d_k),
                         .v = floats(o.v, o.n_rows, o.n_head_kv, o.d_v),
                         .mask = floats(o.mask, o.n_rows, o.n_rows, 1)});
    layers_.insert(o.layer);
    ++n_calls_;
  }

  Calibrator& calibrator_;
  std::set<int> layers_;
  int n_calls_ = 0;
};

// Calibrates on the model's own pseudo-random text; the path of the profile.
std::string calibrate(const Model& model, const std::string& name) {
  Calibrator calibrator;
  Session session(model, {.n_ctx = 512});
  const Observer observer(calibrator);
  for (int chunk = 0; chunk < kChunks; ++chunk) {
    calibrator.begin_chunk();
    session.feed(tiny_tokens(kChunk, 1000 + chunk));
    llama_memory_clear(session.memory(), true);
  }
  EXPECT_EQ(observer.n_calls(), kChunks * static_cast<int>(observer.layers().size()));
  const std::string path = scratch_dir() + "/" + name + ".profile.gguf";
  calibrator.finish().save(path);
  return path;
}

// KLD of codecs against dense rows, with a profile.
class Damage {
 public:
  explicit Damage(const TinyModelConfig& config)
      : model_(config, Backend::kHeadq),
        profile_(calibrate(model_, to_string(config.family))),
        dense_(run(model_, {}, tokens_, kPrompt)) {}

  double kld(const std::string& kv) const {
    return mean_kld(dense_, run(model_, {.kv = kv, .profile = profile_}, tokens_, kPrompt));
  }
  const std::string& profile() const { return profile_; }

 private:
  static constexpr int kPrompt = 380;
  std::vector<int32_t> tokens_ = tiny_tokens(400, 7);
  Model model_;
  std::string profile_;
  Logits dense_;
};

using ProfileFamily = EachFamily;
HEADQ_FOR_EACH_FAMILY(ProfileFamily);

TEST_P(ProfileFamily, QueryBasisBeatsTheControls) {
  const Damage damage({.family = GetParam(), .head_dim = 64, .n_swa = 200});
  const double plain = damage.kld("kivi2/dense");
  const double query = damage.kld("kivi2+hq4x4/dense");
  EXPECT_LT(query, 0.7 * plain);
  EXPECT_LT(query, 0.8 * damage.kld("kivi2+hq4x4@random/dense"));
  EXPECT_LT(query, damage.kld("kivi2+hq4x4@key/dense"));
  EXPECT_GT(damage.kld("kivi2-hq4x4/dense"), 1.2 * plain);
}

TEST_P(ProfileFamily, ThreeBitsLieBetweenTwoAndFour) {
  const Damage damage({.family = GetParam(), .head_dim = 64, .n_swa = 200});
  const double kivi3 = damage.kld("kivi3/dense");
  EXPECT_LT(kivi3, damage.kld("kivi2/dense"));
  EXPECT_GT(kivi3, damage.kld("kivi4/dense"));
}

TEST(Profile, MoreRankDoesLessDamage) {
  const Damage damage({.family = TinyFamily::kLlama, .head_dim = 64});
  const double rank1 = damage.kld("kivi2+hq1x4/dense");
  const double rank8 = damage.kld("kivi2+hq8x4/dense");
  EXPECT_LT(rank1, damage.kld("kivi2/dense"));
  EXPECT_LT(rank8, rank1);
}

TEST(Profile, CentringHelpsKeysThatHaveAMean) {
  const Damage damage({.family = TinyFamily::kGpt2, .head_dim = 64});  // no rotation moves the mean
  EXPECT_LT(damage.kld("token2c/dense"), damage.kld("token2/dense"));
  EXPECT_LT(damage.kld("token4hc/dense"), damage.kld("token2hc/dense"));
}

// Why a context with this profile is refused; "" when it is not.
std::string refusal(const TinyModelConfig& config, const std::string& profile) {
  const Model model(config, Backend::kHeadq);
  const SessionConfig session{.kv = "kivi2+hq4x4", .profile = profile};
  if (Session::try_open(model, session) != nullptr) return "";
  return Plugin::get().last_error();
}

TEST(Profile, OfAnotherShapeIsRefused) {
  const TinyModelConfig config{.family = TinyFamily::kLlama, .head_dim = 64};
  const std::string profile = calibrate(Model(config, Backend::kHeadq), "shape");
  EXPECT_EQ(refusal(config, profile), "");
  TinyModelConfig other = config;
  other.head_dim = 48;
  EXPECT_THAT(refusal(other, profile), AllOf(HasSubstr("64"), HasSubstr("48")));
  other = config;
  other.n_head_kv = 4;
  EXPECT_THAT(refusal(other, profile), AllOf(HasSubstr("2"), HasSubstr("4")));
  other = config;
  other.n_layer = 3;
  EXPECT_THAT(refusal(other, profile), HasSubstr("layer 2"));
}

TEST(Profile, DamagedFilesAreRefused) {
  const TinyModelConfig config{.family = TinyFamily::kLlama, .head_dim = 64};
  const std::string profile = calibrate(Model(config, Backend::kHeadq), "damaged");
  const Model model(config, Backend::kHeadq);
  std::filesystem::resize_file(profile, std::filesystem::file_size(profile) - 100);
  EXPECT_THROW(Session(model, {.kv = "kivi2+hq4x4", .profile = profile}), std::runtime_error);
}

}  // namespace
}  // namespace headq::testing
