// Codecs that need a profile, calibrated through the plugin's observer on the model itself.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "ggml/calibrated.h"
#include "ggml/compare.h"
#include "ggml/families.h"
#include "ggml/session.h"

namespace headq::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

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
