// The runner on the plugin: contexts of several policies at once, and what they hold and predict.

#include "runner/plugin.h"

#include <gtest/gtest.h>

#include <cmath>

#include "headq/error.h"
#include "models/tiny_models.h"
#include "runner/perplexity.h"
#include "runner/run_program.h"
#include "runner/tiny_run.h"

namespace headq {
namespace {

using testing::find_estimate;
using testing::llama_perplexity;
using testing::scratch_dir;
using testing::tiny_chunks;
using testing::tiny_model_path;

constexpr int kContext = 512;

CacheSpec cache_of(const std::string& kv, int window = 32, int sinks = 4) {
  CacheSpec spec;
  spec.kv = KvSpec::parse(kv);
  spec.window = window;
  spec.sinks = sinks;
  return spec;
}

PerplexityReport measure(Device device, const std::vector<CacheSpec>& specs, int n_batch = 128,
                         int n_ubatch = 128, int n_threads = 2) {
  const Model model = Model::load(tiny_model_path(), device);
  return measure_perplexity(
      model, tiny_chunks(model, kContext), candidates_of(specs, ""),
      {.n_chunks = 2, .n_batch = n_batch, .n_ubatch = n_ubatch, .n_threads = n_threads});
}

TEST(PluginRun, DenseAgainstDenseDivergesByExactlyZero) {
  const auto report = measure(Device::kPlugin, {cache_of("dense")});
  EXPECT_EQ(report.rows[0].summary.kld.value, 0.0);
  EXPECT_EQ(report.rows[0].summary.kld_max, 0.0);
  EXPECT_EQ(report.rows[0].summary.ppl_ratio.value, 1.0);
  EXPECT_EQ(report.dense_ppl.value, report.rows[0].summary.ppl.value);
}

TEST(PluginRun, DenseIsWhatLlamaCppComputes) {
  const auto plugin = measure(Device::kPlugin, {cache_of("dense")});
  const auto cpu = measure(Device::kCpu, {cache_of("dense")});
  EXPECT_NEAR(plugin.dense_ppl.value / cpu.dense_ppl.value, 1.0, 1e-3);
}

TEST(PluginRun, FewerBitsDivergeMore) {
  const auto report =
      measure(Device::kPlugin, {cache_of("kivi8"), cache_of("kivi4"), cache_of("kivi2")});
  double last = 0;
  for (const PerplexityRow& row : report.rows) {
    EXPECT_GT(row.summary.kld.value, 2 * last) << row.name;
    last = row.summary.kld.value;
  }
  EXPECT_LT(report.rows[0].summary.kld.value, 0.01);
}

TEST(PluginRun, EveryContextCountsItsOwnBytes) {
  const auto report = measure(
      Device::kPlugin, {cache_of("kivi2/dense", 0, 0), cache_of("dense"), cache_of("kivi4", 0, 0)});
  // Tiny Llama: d 32. Keys of kivi2 have a scale and a zero (32 bits) per channel and 64 tokens,
  // values of kivi4 per token and 32 channels.
  EXPECT_DOUBLE_EQ(report.rows[0].cache.packed_bits(), 2 + 32.0 / 64);
  EXPECT_EQ(report.rows[1].cache.packed_bytes, 0u);
  EXPECT_DOUBLE_EQ(report.rows[2].cache.packed_bits(), (4 + 32.0 / 64 + 4 + 32.0 / 32) / 2);
  EXPECT_EQ(report.rows[1].cache.true_bits(), report.dense_cache.true_bits());
  for (const PerplexityRow& row : report.rows) {
    EXPECT_EQ(row.cache.n_tokens, static_cast<uint64_t>(kContext)) << row.name;
    EXPECT_EQ(row.cache.n_elements, report.dense_cache.n_elements) << row.name;
    EXPECT_GE(row.cache.cache_bytes(), row.cache.packed_bytes) << row.name;
  }
  // 16 bits and the bookkeeping.
  EXPECT_GT(report.dense_cache.true_bits(), 16.0);
  EXPECT_LT(report.dense_cache.true_bits(), 16.5);
}

TEST(PluginRun, ScoresDoNotDependOnThreads) {
  const auto one = measure(Device::kPlugin, {cache_of("kivi2")}, 128, 128, 1);
  const auto two = measure(Device::kPlugin, {cache_of("kivi2")}, 128, 128, 2);
  EXPECT_EQ(one.rows[0].summary.ppl.value, two.rows[0].summary.ppl.value);
  EXPECT_EQ(one.rows[0].summary.kld.value, two.rows[0].summary.kld.value);
}

TEST(PluginRun, PerplexityDoesNotDependOnTheMicroBatch) {
  const auto small = measure(Device::kPlugin, {cache_of("kivi2")}, 512, 64);
  const auto large = measure(Device::kPlugin, {cache_of("kivi2")}, 512, 512);
  EXPECT_NEAR(small.rows[0].summary.ppl.value / large.rows[0].summary.ppl.value, 1.0, 1e-3);
}

TEST(PluginRun, OneContextDoesNotDisturbAnother) {
  const auto alone = measure(Device::kPlugin, {cache_of("kivi2")});
  const auto beside = measure(Device::kPlugin, {cache_of("kivi4"), cache_of("kivi2", 32, 4)});
  EXPECT_EQ(alone.rows[0].summary.kld.value, beside.rows[1].summary.kld.value);
}

TEST(PluginRun, WindowAndSinksReachTheCache) {
  const auto report = measure(Device::kPlugin, {cache_of("kivi2", 32, 4), cache_of("kivi2", 256, 4),
                                                cache_of("kivi2", 32, 0)});
  const auto packed = [&](size_t i) { return report.rows[i].cache.packed_elements; };
  EXPECT_GT(packed(0), packed(1));
  EXPECT_LT(packed(0), packed(2));
  EXPECT_GT(report.rows[0].summary.kld.value, report.rows[1].summary.kld.value);
}

TEST(PluginRun, AgreesWithLlamaPerplexitysDivergence) {
  const auto report = measure(Device::kPlugin, {cache_of("kivi2/kivi2")}, 512, 512);
  const PairedSummary& ours = report.rows[0].summary;

  const std::string base = scratch_dir() + "/base.kld";
  const std::string plugin = std::string("GGML_BACKEND_PATH=") + HEADQ_TEST_PLUGIN;
  std::vector<std::string> args = {"--device",
                                   "HEADQ0",
                                   "-ngl",
                                   "99",
                                   "-c",
                                   "512",
                                   "-b",
                                   "512",
                                   "--chunks",
                                   "2",
                                   "--kl-divergence-base",
                                   base};
  ASSERT_NE(llama_perplexity(args, {plugin, "HEADQ_KV=dense"}, "Final estimate"), "");
  args.push_back("--kl-divergence");
  const std::string log = llama_perplexity(args, {plugin, "HEADQ_KV=kivi2/kivi2"}, "Same top p:");
  const auto value = [&](const std::string& label) {
    const auto found = find_estimate(log, label);
    return found ? std::stod(found->first) : std::nan("");
  };
  // The base file holds log probabilities in 16 bits over at most 16 nats: a step of 2.4e-4.
  constexpr double kStep = 16.0 / 65535;
  EXPECT_GT(ours.kld.value, 100 * kStep) << "too small to compare";
  EXPECT_NEAR(value("Mean    KLD:"), ours.kld.value, kStep);
  EXPECT_NEAR(value("Mean PPL(Q)                   :") / ours.ppl.value, 1.0, 1e-5);
  EXPECT_NEAR(value("Mean PPL(Q)/PPL(base)         :"), ours.ppl_ratio.value, 2 * kStep);
  EXPECT_NEAR(value("RMS Δp    :"), 100 * ours.rms_dp.value, 100 * kStep);
  EXPECT_NEAR(value("Same top p:"), 100 * ours.top1.value, 100.5 / static_cast<double>(ours.n));
}

TEST(PluginRun, ASpecWithoutItsProfileIsRefused) {
  const Model model = Model::load(tiny_model_path(), Device::kPlugin);
  EXPECT_THROW(Context(model, {.n_ctx = 256, .cache = cache_of("kivi2+hq4x4")}), Error);
  // A refusal leaves nothing behind that would hurt the next context.
  Context context(model, {.n_ctx = 256, .cache = cache_of("kivi2")});
  EXPECT_EQ(context.decode(testing::tiny_tokens(8, 1), 0, 7).size(),
            static_cast<size_t>(model.n_vocab()));
}

TEST(PluginRun, NothingToMeasureIsRefused) { EXPECT_THROW(measure(Device::kPlugin, {}), Error); }

}  // namespace
}  // namespace headq
