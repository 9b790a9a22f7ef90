#include "headq/model_info.h"

#include <gtest/gtest.h>

#include <random>

#include "codec/fake_model.h"
#include "codec/sample_profile.h"
#include "core/error_of.h"
#include "core/gguf.h"
#include "core/temp_dir.h"

namespace headq {
namespace {

using testing::FakeModel;
using testing::put_file;
using testing::TempDir;

LayerShape shape(int n_head_kv, int d_k, int d_v) { return {n_head_kv, d_k, d_v}; }

TEST(ModelInfo, ReadsTheUsualKeys) {
  const ModelInfo info = FakeModel().usual().name("Tiny").u32("context_length", 2048).load();
  EXPECT_EQ(info.arch, "llama");
  EXPECT_EQ(info.name, "Tiny");
  EXPECT_EQ(info.n_layer, 4);
  EXPECT_EQ(info.n_ctx_train, 2048);
  EXPECT_EQ(info.n_swa, 0);
  EXPECT_EQ(info.layers, std::vector<LayerShape>(4, shape(2, 32, 32)));
  EXPECT_EQ(info.fingerprint.size(), 64u);
  EXPECT_EQ(info.why_unsupported(), "");
}

TEST(ModelInfo, TakesOneKvHeadPerHeadWhenNothingElseIsSaid) {
  const ModelInfo info = FakeModel("gpt2")
                             .u32("block_count", 1)
                             .u32("embedding_length", 256)
                             .u32("attention.head_count", 4)
                             .load();
  EXPECT_EQ(info.layers, std::vector<LayerShape>{shape(4, 64, 64)});
}

TEST(ModelInfo, TakesStatedHeadDims) {
  const ModelInfo info =
      FakeModel().usual().u32("attention.key_length", 128).u32("attention.value_length", 64).load();
  EXPECT_EQ(info.layers[3], shape(2, 128, 64));
}

TEST(ModelInfo, ReadsKvHeadsPerLayer) {
  const ModelInfo info = FakeModel()
                             .u32("block_count", 3)
                             .u32("embedding_length", 256)
                             .i32s("attention.head_count", {8, 8, 8})
                             .i32s("attention.head_count_kv", {4, 0, 1})
                             .load();
  EXPECT_EQ(info.layers,
            (std::vector<LayerShape>{shape(4, 32, 32), shape(0, 0, 0), shape(1, 32, 32)}));
}

FakeModel windowed_model() {
  FakeModel model("gemma4");
  model.usual()
      .u32("attention.key_length", 128)
      .u32("attention.value_length", 128)
      .u32("attention.key_length_swa", 64)
      .u32("attention.value_length_swa", 64)
      .u32("attention.sliding_window", 512);
  return model;
}

TEST(ModelInfo, GivesWindowedLayersTheirHeadDims) {
  const ModelInfo info =
      windowed_model().i32s("attention.sliding_window_pattern", {1, 0, 1, 1}).load();
  EXPECT_EQ(info.n_swa, 512);
  EXPECT_EQ(info.layers, (std::vector<LayerShape>{shape(2, 64, 64), shape(2, 128, 128),
                                                  shape(2, 64, 64), shape(2, 64, 64)}));
}

TEST(ModelInfo, SeesWindowedLayersByTheirWeights) {
  FakeModel model = windowed_model();
  for (int il = 0; il < 4; ++il) {
    model.tensor("blk." + std::to_string(il) + ".attn_k.weight", {2, il == 3 ? 256u : 128u});
  }
  const ModelInfo info = model.load();
  EXPECT_EQ(info.layers[0], shape(2, 64, 64));
  EXPECT_EQ(info.layers[3], shape(2, 128, 128));
}

TEST(ModelInfo, SaysWhenItCannotTellWindowedLayers) {
  EXPECT_ERROR(windowed_model().load(), ErrorCode::kUnsupported, "layer 0 has a sliding window");
}

TEST(ModelInfo, LeavesOutLayersThatShareACache) {
  const ModelInfo info = FakeModel().usual().u32("attention.shared_kv_layers", 1).load();
  EXPECT_EQ(info.layers[2].n_head_kv, 2);
  EXPECT_EQ(info.layers[3].n_head_kv, 0);
}

TEST(ModelInfo, LeavesOutDraftLayers) {
  const ModelInfo info = FakeModel().usual().u32("nextn_predict_layers", 2).load();
  EXPECT_EQ(info.layers[1].n_head_kv, 2);
  EXPECT_EQ(info.layers[2].n_head_kv, 0);
}

TEST(ModelInfo, RepeatsTheLayersOfALoopedModel) {
  const ModelInfo info = FakeModel().usual().u32("num_loops", 3).load();
  EXPECT_EQ(info.n_layer, 12);
  EXPECT_EQ(info.layers[11], shape(2, 32, 32));
}

TEST(ModelInfo, NamesWhatItCannotServe) {
  const auto why = [](FakeModel& model) { return model.load().why_unsupported(); };
  EXPECT_EQ(why(FakeModel("mamba").u32("block_count", 2).u32("ssm.state_size", 16)),
            "mamba has recurrent layers, whose state is no KV cache");
  EXPECT_EQ(why(FakeModel("rwkv7").u32("block_count", 2).u32("wkv.head_size", 64)),
            "rwkv7 has recurrent layers, whose state is no KV cache");
  EXPECT_EQ(why(FakeModel("deepseek2").usual().u32("attention.key_length_mla", 192)),
            "deepseek2 has multi-head latent attention, one cache for both sides");
  EXPECT_EQ(why(FakeModel("bert").usual().u32("attention.causal", 0)),
            "bert is an encoder and has no KV cache");
  EXPECT_EQ(why(FakeModel("t5").usual().u32("attention.relative_buckets_count", 32)),
            "t5 adds a learned bias to scores, which flash attention cannot do");
  EXPECT_EQ(why(FakeModel("x").usual().u32("attention.key_length", 512)),
            "layer 0 has keys of head_dim 512, HeadQ serves 16..256");
  EXPECT_EQ(why(FakeModel("x").usual().u32("attention.value_length", 8)),
            "layer 0 has values of head_dim 8, HeadQ serves 16..256");
  EXPECT_EQ(why(FakeModel("x")
                    .u32("block_count", 2)
                    .u32("embedding_length", 64)
                    .u32("attention.head_count", 2)
                    .i32s("attention.head_count_kv", {0, 0})),
            "x has no layer with a KV cache");
}

TEST(ModelInfo, ServesTheWholeRangeOfHeadDims) {
  for (uint32_t d : {16u, 80u, 96u, 256u}) {
    EXPECT_EQ(FakeModel()
                  .usual()
                  .u32("attention.key_length", d)
                  .u32("attention.value_length", d)
                  .load()
                  .why_unsupported(),
              "");
  }
}

TEST(ModelInfo, RefusesFilesThatAreNoModel) {
  const TempDir dir;
  EXPECT_ERROR(ModelInfo::load(dir.file("none")), ErrorCode::kIo, "No such file");
  put_file(dir.file("text"), std::vector<uint8_t>{'t', 'e', 'x', 't'});
  EXPECT_ERROR(ModelInfo::load(dir.file("text")), ErrorCode::kCorrupt, "not a GGUF file");
  put_file(dir.file("bare"), GgufWriter().finish());
  EXPECT_ERROR(ModelInfo::load(dir.file("bare")), ErrorCode::kUnsupported, "no model architecture");
  testing::sample_profile().save(dir.file("profile"));
  EXPECT_ERROR(ModelInfo::load(dir.file("profile")), ErrorCode::kMismatch,
               "a headq profile, not a model");
  EXPECT_ERROR(FakeModel("clip").load(), ErrorCode::kUnsupported, "has no clip.block_count");
  EXPECT_ERROR(FakeModel().u32("block_count", 2).load(), ErrorCode::kUnsupported,
               "has no llama.attention.head_count");
}

TEST(ModelInfo, RefusesImpossibleNumbers) {
  EXPECT_ERROR(FakeModel().u32("block_count", 4000000000u).load(), ErrorCode::kCorrupt,
               "block_count 4000000000 is not in 1..512");
  EXPECT_ERROR(FakeModel().u32("block_count", 0).load(), ErrorCode::kCorrupt, "not in 1..512");
  EXPECT_ERROR(FakeModel().usual().u32("attention.key_length", UINT32_MAX).load(),
               ErrorCode::kCorrupt, "attention.key_length 4294967295");
  EXPECT_ERROR(FakeModel().usual().u32("num_loops", 200).load(), ErrorCode::kCorrupt,
               "more than 512 layers");
  EXPECT_ERROR(FakeModel()
                   .u32("block_count", 3)
                   .u32("attention.head_count", 8)
                   .i32s("attention.head_count_kv", {1, 1})
                   .load(),
               ErrorCode::kCorrupt, "not an array of 3 numbers");
  EXPECT_ERROR(FakeModel().u32("block_count", 1).i32s("attention.head_count", {-1}).load(),
               ErrorCode::kCorrupt, "-1 is not in");
}

// Damaged metadata is refused or read as something else; it never does harm.
TEST(ModelInfo, SurvivesDamage) {
  const TempDir dir;
  const std::string path =
      windowed_model().i32s("attention.sliding_window_pattern", {1, 0, 1, 1}).write(dir);
  const std::vector<uint8_t> bytes = testing::get_file(path);
  std::mt19937 random(1);
  size_t refused = 0;
  constexpr size_t kTries = 400;
  for (size_t i = 0; i < kTries; ++i) {
    std::vector<uint8_t> damaged = bytes;
    damaged[random() % damaged.size()] = static_cast<uint8_t>(random());
    put_file(path, damaged);
    const auto error = testing::error_of([&] { ModelInfo::load(path).why_unsupported(); });
    refused += error.has_value() ? 1 : 0;
  }
  EXPECT_GT(refused, kTries / 8);
}

// --- Fingerprint

FakeModel weights(float a, float b) {
  FakeModel model;
  model.usual().tensor("a", {64}, a).tensor("b", {8, 8}, b);
  return model;
}

TEST(Fingerprint, IsTheSameForAnotherOrderAndName) {
  FakeModel reordered;
  reordered.name("other")
      .u32("attention.head_count_kv", 2)
      .u32("attention.head_count", 8)
      .u32("embedding_length", 256)
      .u32("block_count", 4)
      .tensor("b", {8, 8}, 2.0f)
      .tensor("a", {64}, 1.0f);
  EXPECT_EQ(weights(1.0f, 2.0f).load().fingerprint, reordered.load().fingerprint);
}

TEST(Fingerprint, TellsModelsApart) {
  const std::string base = weights(1.0f, 2.0f).load().fingerprint;
  EXPECT_NE(base, weights(1.0f, 2.5f).load().fingerprint) << "other weights, same shapes";
  EXPECT_NE(base, weights(1.0f, 2.0f).u32("rope.freq_base", 5).load().fingerprint);
  EXPECT_NE(base, weights(1.0f, 2.0f).tensor("c", {1}).load().fingerprint);
  FakeModel transposed;
  transposed.usual().tensor("a", {64}, 1.0f).tensor("b", {64}, 2.0f);
  EXPECT_NE(base, transposed.load().fingerprint);
  FakeModel renamed;
  renamed.usual().tensor("a", {64}, 1.0f).tensor("B", {8, 8}, 2.0f);
  EXPECT_NE(base, renamed.load().fingerprint);
}

TEST(Fingerprint, ReadsFourKibibytesOfATensor) {
  const auto with_change_at = [](size_t i) {
    GgufWriter out;
    out.add_string("general.architecture", "llama");
    out.add_u32("llama.block_count", 1);
    out.add_u32("llama.embedding_length", 64);
    out.add_u32("llama.attention.head_count", 1);
    std::vector<float> data(2000, 1.0f);
    data[i] = 2.0f;
    out.add_f32("a", std::vector<uint64_t>{2000}, data);
    const TempDir dir;
    put_file(dir.file("m"), out.finish());
    return ModelInfo::load(dir.file("m")).fingerprint;
  };
  EXPECT_NE(with_change_at(1023), with_change_at(1024));  // float 1024 is behind the sample
  EXPECT_EQ(with_change_at(1024), with_change_at(1999));
}

TEST(Fingerprint, IsThatOfTheWholeModelWhenItIsSplit) {
  const TempDir dir;
  FakeModel first, second("");
  first.usual().tensor("b", {8, 8}, 2.0f).global_u32("split.count", 2).global_u32("split.no", 0);
  second.tensor("a", {64}, 1.0f).global_u32("split.no", 1);
  const std::string path = first.write(dir, "m-00001-of-00002.gguf");
  EXPECT_ERROR(ModelInfo::load(path), ErrorCode::kIo, "m-00002-of-00002.gguf");
  const std::string later = second.write(dir, "m-00002-of-00002.gguf");
  EXPECT_EQ(ModelInfo::load(path).fingerprint, weights(1.0f, 2.0f).load().fingerprint);
  EXPECT_ERROR(ModelInfo::load(later), ErrorCode::kMismatch, "name the first one");
  const std::string renamed = first.write(dir, "m.gguf");
  EXPECT_ERROR(ModelInfo::load(renamed), ErrorCode::kMismatch, "-00001-of-00002.gguf");
}

// --- Profile and model

TEST(Mismatch, IsNoneForTheModelsOwnProfile) {
  const ModelInfo info = weights(1.0f, 2.0f).load();
  EXPECT_EQ(info.why_mismatch(testing::profile_for(info)), "");
}

TEST(Mismatch, NamesWhatDiffers) {
  const ModelInfo info = weights(1.0f, 2.0f).name("Mine").load();
  const Profile right = testing::profile_for(info);

  Profile arch = right;
  arch.model_arch = "qwen2";
  EXPECT_EQ(info.why_mismatch(arch), "the profile is for a qwen2 model, this is llama");

  Profile heads = right;
  heads.shapes[1].n_head_kv = 1;
  EXPECT_EQ(info.why_mismatch(heads),
            "the profile has 1 KV heads of 32/32 in layer 1, this model 2 of 32/32");

  Profile layer = right;
  layer.layer_ids.back() = 9;
  EXPECT_EQ(info.why_mismatch(layer),
            "the profile has 2 KV heads of 32/32 in layer 9, this model 0 of 0/0");

  Profile tuned = right;
  tuned.model_name = "Theirs";
  tuned.model_fingerprint = weights(1.0f, 2.5f).load().fingerprint;
  EXPECT_EQ(info.why_mismatch(tuned), "the profile is for 'Theirs' with fingerprint " +
                                          tuned.model_fingerprint.substr(0, 12) +
                                          ", this is 'Mine' with " +
                                          info.fingerprint.substr(0, 12));
}

}  // namespace
}  // namespace headq
