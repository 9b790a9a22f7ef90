// Model files of every family, as ModelInfo and headq inspect see them.

#include <gtest/gtest.h>

#include "cli/command.h"
#include "core/temp_dir.h"
#include "headq/model_info.h"
#include "models/tiny_models.h"

namespace headq {
namespace {

using testing::TinyFamily;
using testing::TinyModelConfig;

class Families : public ::testing::TestWithParam<TinyFamily> {};

TEST_P(Families, HaveTheLayersTheyWereWrittenWith) {
  const testing::TempDir dir;
  const TinyModelConfig config = testing::resolved({.family = GetParam()});
  const std::string path = testing::write_tiny_model(config, dir.path());
  const ModelInfo info = ModelInfo::load(path);
  EXPECT_EQ(info.why_unsupported(), "");
  EXPECT_EQ(info.n_layer, config.n_layer);
  EXPECT_EQ(info.n_ctx_train, config.n_ctx_train);
  EXPECT_EQ(info.n_swa, testing::has_window(GetParam()) ? config.n_swa : 0);
  int n_cached = 0;
  for (const LayerShape& layer : info.layers) {
    if (layer.n_head_kv == 0) continue;
    ++n_cached;
    EXPECT_EQ(layer.n_head_kv, config.n_head_kv);
    EXPECT_EQ(layer.d_k, layer.d_v);
    // Gemma 4's windowed layers have half the head_dim.
    const bool is_narrow = GetParam() == TinyFamily::kGemma4 && layer.d_k == config.head_dim / 2;
    EXPECT_TRUE(is_narrow || layer.d_k == config.head_dim) << layer.d_k;
  }
  EXPECT_EQ(n_cached, GetParam() == TinyFamily::kGemma4 ? config.n_layer - 2 : config.n_layer);
  EXPECT_EQ(testing::run_headq({"inspect", path}).exit_code, 0);
}

TEST(ModelShapes, OfGemma4HaveTwoHeadDims) {
  const testing::TempDir dir;
  const TinyModelConfig config = testing::resolved({.family = TinyFamily::kGemma4});
  const ModelInfo info = ModelInfo::load(testing::write_tiny_model(config, dir.path()));
  bool wide = false, narrow = false;
  for (const LayerShape& layer : info.layers) {
    wide |= layer.d_k == config.head_dim;
    narrow |= layer.d_k == config.head_dim / 2;
  }
  EXPECT_TRUE(wide && narrow);
}

INSTANTIATE_TEST_SUITE_P(All, Families,
                         ::testing::ValuesIn(testing::all_tiny_families().begin(),
                                             testing::all_tiny_families().end()));

}  // namespace
}  // namespace headq
