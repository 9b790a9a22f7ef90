#include "runner/calibration.h"

#include <gtest/gtest.h>

#include <map>
#include <stdexcept>

#include "core/file.h"
#include "headq/error.h"
#include "models/tiny_models.h"
#include "runner/run_program.h"
#include "runner/tiny_run.h"

namespace headq {
namespace {

using testing::scratch_dir;
using testing::tiny_chunks;
using testing::tiny_model_path;

constexpr int kContext = 128;
constexpr int kSkipped = 4;  // sinks that calibration leaves out

const Model& model() {
  static const Model instance = Model::load(tiny_model_path(), Device::kPlugin);
  return instance;
}

ChunkedText text_of(const std::string& name, int n_chunks) {
  return ChunkedText(name, std::vector<int32_t>(static_cast<size_t>(n_chunks * kContext), 7),
                     kContext, -1);
}

std::vector<uint8_t> saved(const Profile& profile) {
  const std::string path = scratch_dir() + "/profile.gguf";
  profile.save(path);
  return read_file(path);
}

TEST(DealChunks, TakesTurnsFromTheStartOfEachText) {
  const std::vector<ChunkedText> texts = {text_of("a", 9), text_of("b", 3)};
  const std::vector<ChunkRef> expected = {{0, 0}, {1, 0}, {0, 1}, {1, 1}, {0, 2}};
  EXPECT_EQ(deal_chunks(texts, 5), expected);
}

TEST(DealChunks, ByDefaultSharesAreEqualAndAsManyAsThereAre) {
  const std::vector<ChunkedText> uneven = {text_of("a", 9), text_of("b", 1)};
  EXPECT_EQ(deal_chunks(uneven, -1).size(), 2u);
  const std::vector<ChunkedText> rich = {text_of("a", 99)};
  EXPECT_EQ(deal_chunks(rich, -1).size(), static_cast<size_t>(kDefaultCalibrationChunks));
}

TEST(DealChunks, EveryTextHasItsShareEvenOfMoreTextsThanTheDefault) {
  const std::vector<ChunkedText> many(kDefaultCalibrationChunks + 3, text_of("a", 2));
  EXPECT_EQ(deal_chunks(many, -1).size(), many.size());
}

TEST(DealChunks, TooFewChunksAreRefusedByName) {
  const std::vector<ChunkedText> texts = {text_of("a", 9), text_of("b", 3)};
  EXPECT_EQ(deal_chunks(texts, 7).size(), 7u);
  for (int n_asked : {8, 1, 0, -2}) EXPECT_THROW(deal_chunks(texts, n_asked), Error) << n_asked;
  try {
    deal_chunks(texts, 8);
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "--chunks 8 takes more from 'b' than its 3 chunks of 128 tokens");
  }
}

// E[q_c^2] and E[k_c] of one layer and KV head by the definition, over the same chunks.
struct NaiveMoments {
  std::vector<double> query_energy, key_mean;
};

std::map<int, NaiveMoments> naive_moments(const ChunkedText& text, int n_chunks, int kv_head,
                                          int n_skipped) {
  Context context(model(), {.n_ctx = kContext, .n_batch = kContext, .n_ubatch = kContext});
  std::map<int, NaiveMoments> moments;
  Plugin::instance().set_observer([&](const headq_observation& o) {
    NaiveMoments& m = moments[o.layer];
    const int group = o.n_head / o.n_head_kv;
    m.query_energy.resize(static_cast<size_t>(o.d_k));
    m.key_mean.resize(static_cast<size_t>(o.d_k));
    const double n = static_cast<double>((kContext - n_skipped) * n_chunks);
    for (int row = n_skipped; row < o.n_rows; ++row) {
      for (int c = 0; c < o.d_k; ++c) {
        m.key_mean[static_cast<size_t>(c)] += o.k[(row * o.n_head_kv + kv_head) * o.d_k + c] / n;
        for (int h = kv_head * group; h < (kv_head + 1) * group; ++h) {
          const double q = o.q[(row * o.n_head + h) * o.d_k + c];
          m.query_energy[static_cast<size_t>(c)] += q * q / (n * group);
        }
      }
    }
  });
  for (int chunk = 0; chunk < n_chunks; ++chunk) {
    context.clear();
    context.decode(text.input(chunk), 0, kContext - 1);
  }
  Plugin::instance().set_observer({});
  return moments;
}

double largest_difference(const std::vector<float>& got, const std::vector<double>& want) {
  EXPECT_EQ(got.size(), want.size());
  double worst = 0, scale = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    worst = std::max(worst, std::abs(got[i] - want[i]));
    scale = std::max(scale, std::abs(want[i]));
  }
  return worst / scale;
}

TEST(Calibrate, MomentsAreThoseOfWhatAttentionSees) {
  const ChunkedText text = tiny_chunks(model(), kContext);
  const std::vector<ChunkedText> texts = {text};
  const Profile profile = calibrate(model(), texts, {.n_chunks = 3});
  const auto expected = naive_moments(text, 3, /*kv_head=*/1, kSkipped);
  const auto with_sinks = naive_moments(text, 3, /*kv_head=*/1, 0);
  ASSERT_EQ(profile.layer_ids.size(), expected.size());
  for (const auto& [layer, moments] : expected) {
    const HeadProfile& head = profile.layer_heads(profile.find_layer(layer))[1];
    EXPECT_LT(largest_difference(head.query_energy, moments.query_energy), 1e-5) << layer;
    EXPECT_LT(largest_difference(head.key_mean, moments.key_mean), 1e-5) << layer;
    // The comparison sees an error as small as sinks that were not left out.
    EXPECT_GT(largest_difference(head.query_energy, with_sinks.at(layer).query_energy), 1e-4);
  }
}

TEST(Calibrate, KnowsWhereItComesFrom) {
  const std::vector<ChunkedText> texts = {tiny_chunks(model(), kContext)};
  const Profile profile = calibrate(model(), texts, {.n_chunks = 2});
  EXPECT_EQ(profile.model_arch, "llama");
  EXPECT_EQ(profile.model_fingerprint, model().info().fingerprint);
  EXPECT_EQ(profile.n_tokens, 2u * (kContext - kSkipped));
  EXPECT_EQ(profile.n_ctx, kContext);
  EXPECT_EQ(profile.tool_version, HEADQ_TEST_VERSION);
  EXPECT_EQ(model().info().why_mismatch(profile), "");
}

TEST(Calibrate, TheSameInputGivesTheSameBytes) {
  const std::vector<ChunkedText> texts = {tiny_chunks(model(), kContext)};
  const auto once = saved(calibrate(model(), texts, {.n_chunks = 3, .n_threads = 1}));
  EXPECT_EQ(saved(calibrate(model(), texts, {.n_chunks = 3, .n_threads = 1})), once);
  EXPECT_EQ(saved(calibrate(model(), texts, {.n_chunks = 3, .n_threads = 2})), once);
  EXPECT_NE(saved(calibrate(model(), texts, {.n_chunks = 4, .n_threads = 1})), once);
}

TEST(Calibrate, AProfileOfAnotherModelIsRefused) {
  const std::vector<ChunkedText> texts = {tiny_chunks(model(), kContext)};
  const std::string path = scratch_dir() + "/other.gguf";
  calibrate(model(), texts, {.n_chunks = 2}).save(path);
  const std::string other_path =
      testing::write_tiny_model({.family = testing::TinyFamily::kLlama, .seed = 2}, scratch_dir());
  const Model other = Model::load(other_path, Device::kPlugin);
  EXPECT_NO_THROW(model().check_profile(path));
  try {
    other.check_profile(path);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kMismatch);
  }
}

TEST(Calibrate, AProfileServesTheSideCode) {
  const std::vector<ChunkedText> texts = {tiny_chunks(model(), kContext)};
  const std::string path = scratch_dir() + "/side.gguf";
  calibrate(model(), texts, {.n_chunks = 4}).save(path);
  std::vector<CacheSpec> specs(4);
  const char* const kv[] = {"kivi2/dense", "kivi2+hq4x4/dense", "kivi2+hq4x4@random/dense",
                            "kivi2-hq4x4/dense"};
  for (size_t i = 0; i < specs.size(); ++i) specs[i].kv = KvSpec::parse(kv[i]);
  const auto report = measure_perplexity(model(), tiny_chunks(model(), 512),
                                         candidates_of(specs, path),
                                         {.n_chunks = 3, .n_threads = 2});
  const auto kld = [&](size_t i) { return report.rows[i].summary.kld.value; };
  EXPECT_LT(kld(1), 0.8 * kld(0)) << "the side code does not help";
  EXPECT_LT(kld(1), kld(2)) << "a random basis is as good";
  EXPECT_GT(kld(3), 1.5 * kld(0)) << "the wrong sign does no harm";
}

NibOptions nib_options(const char* kv, int n_threads = 2) {
  NibOptions nib;
  nib.kv = KvSpec::parse(kv);
  nib.n_threads = n_threads;
  return nib;
}

TEST(Calibrate, OneCalibrationServesManyCodes) {
  const std::vector<ChunkedText> texts = {tiny_chunks(model(), kContext)};
  const Calibration calibration(
      model(), texts, {.n_chunks = 8, .n_threads = 2, .nib = nib_options("nib2")});
  std::vector<CacheCandidate> candidates;
  for (const char* kv : {"nib2/dense", "nib2@random/dense", "nib2-last8/dense", "nib3/dense"}) {
    const KvSpec spec = KvSpec::parse(kv);
    const std::string path = scratch_dir() + "/many" + std::to_string(candidates.size()) + ".gguf";
    KvSpec fitted = spec;
    fitted.k.wrong_sign = 0;
    calibration.profile(nib_options(fitted.to_string().c_str())).save(path);
    CacheSpec cache;
    cache.kv = spec;
    candidates.push_back({kv, cache, path});
  }
  const auto report = measure_perplexity(model(), tiny_chunks(model(), 512), candidates,
                                         {.n_chunks = 3, .n_threads = 2});
  const auto kld = [&](size_t i) { return report.rows[i].summary.kld.value; };
  EXPECT_LT(kld(0), 0.8 * kld(1)) << "a random basis is as good";
  EXPECT_GT(kld(2), 1.5 * kld(0)) << "the wrong sign does no harm";
  EXPECT_LT(kld(3), 0.6 * kld(0)) << "a bit more does not help";
}

TEST(Calibrate, CodesNeedACalibrationThatKeptSamples) {
  const std::vector<ChunkedText> texts = {tiny_chunks(model(), kContext)};
  const Calibration calibration(model(), texts, {.n_chunks = 1});
  EXPECT_EQ(calibration.profile({}).nib, "");
  EXPECT_THROW(calibration.profile(nib_options("nib2")), Error);
}

TEST(Calibrate, CodesDoNotDependOnThreads) {
  const std::vector<ChunkedText> texts = {tiny_chunks(model(), kContext)};
  const auto bytes = [&](int n_threads) {
    return saved(calibrate(model(), texts, {.n_chunks = 2, .n_threads = n_threads,
                                            .nib = nib_options("nib2", n_threads)}));
  };
  EXPECT_EQ(bytes(1), bytes(2));
}

TEST(Calibrate, NeedsThePlugin) {
  const Model cpu = Model::load(tiny_model_path(), Device::kCpu);
  const std::vector<ChunkedText> texts = {tiny_chunks(cpu, kContext)};
  EXPECT_THROW(calibrate(cpu, texts, {.n_chunks = 1}), Error);
}

TEST(Observer, WhatItThrowsComesOutOnce) {
  Context context(model(), {.n_ctx = kContext, .n_batch = kContext, .n_ubatch = kContext});
  Plugin& plugin = Plugin::instance();
  plugin.set_observer([](const headq_observation&) { throw std::runtime_error("planted"); });
  context.decode(testing::tiny_tokens(8, 1), 0, 8);
  EXPECT_THROW(plugin.rethrow_observer_error(), std::runtime_error);
  EXPECT_NO_THROW(plugin.rethrow_observer_error());
  plugin.set_observer({});
}

}  // namespace
}  // namespace headq
