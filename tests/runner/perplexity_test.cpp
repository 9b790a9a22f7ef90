// The instrument on a tiny model, without the plugin.

#include "runner/perplexity.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "headq/error.h"
#include "models/tiny_models.h"
#include "runner/run_program.h"
#include "runner/tiny_run.h"

namespace headq {
namespace {

using testing::find_estimate;
using testing::llama_perplexity;
using testing::scratch_dir;
using testing::scratch_file;
using testing::tiny_chunks;
using testing::tiny_model_path;

constexpr int kContext = 256;

PairedSummary dense_on_cpu(const Model& model, int n_chunks, int n_batch, int n_ubatch,
                           int n_threads) {
  const std::vector<CacheSpec> dense(1);
  return measure_perplexity(model, tiny_chunks(model, kContext), candidates_of(dense, ""),
                            {.n_chunks = n_chunks,
                             .n_batch = n_batch,
                             .n_ubatch = n_ubatch,
                             .n_threads = n_threads})
      .rows.front()
      .summary;
}

TEST(Perplexity, AgreesWithLlamaPerplexityToItsLastDigit) {
  const Model model = Model::load(tiny_model_path(), Device::kCpu);
  const PairedSummary ours = dense_on_cpu(model, 3, kContext, kContext, 2);
  EXPECT_EQ(ours.n, 3u * (kContext - 1 - kContext / 2));
  const std::string context = std::to_string(kContext);
  const auto theirs = find_estimate(
      llama_perplexity({"-c", context, "-b", context, "--chunks", "3"}, {}, "Final estimate"),
      "Final estimate: PPL =");
  ASSERT_TRUE(theirs);
  EXPECT_EQ(fmt::format("{:.4f} {:.5f}", ours.ppl.value, ours.ppl.error),
            theirs->first + " " + theirs->second);
}

TEST(Perplexity, DenseAgainstDenseDivergesByExactlyZero) {
  const Model model = Model::load(tiny_model_path(), Device::kCpu);
  const PairedSummary s = dense_on_cpu(model, 2, 64, 64, 2);
  EXPECT_EQ(s.kld.value, 0.0);
  EXPECT_EQ(s.kld_max, 0.0);
  EXPECT_EQ(s.ppl_ratio.value, 1.0);
  EXPECT_EQ(s.top1.value, 1.0);
  // A model that predicts nothing would pass all of the above.
  EXPECT_GT(s.ppl.value, 1.5);
  EXPECT_NE(s.ppl.value, static_cast<double>(model.n_vocab()));
}

std::vector<CacheCandidate> cpu_candidates(const Model& model) {
  std::vector<CacheCandidate> out;
  for (const char* type : {"f16", "q8_0", "q4_0"}) {
    CacheCandidate& candidate = out.emplace_back();
    candidate.name = candidate.cpu_cache = type;
    candidate.cpu_model = &model;
  }
  return out;
}

TEST(Perplexity, KnowsTheCacheTypesOfLlamaCpp) {
  const Model model = Model::load(tiny_model_path(), Device::kCpu);
  const auto report = measure_perplexity(model, tiny_chunks(model, kContext),
                                         cpu_candidates(model),
                                         {.n_chunks = 2,
                                          .n_batch = kContext,
                                          .n_ubatch = kContext,
                                          .n_threads = 2});
  EXPECT_EQ(report.rows[0].summary.kld_max, 0.0);
  EXPECT_GT(report.rows[1].summary.kld.value, 0.0);
  EXPECT_GT(report.rows[2].summary.kld.value, 10 * report.rows[1].summary.kld.value);
  EXPECT_EQ(cpu_cache_bits("f16"), 16.0);
  EXPECT_EQ(cpu_cache_bits("q8_0"), 8.5);
  EXPECT_EQ(cpu_cache_bits("q4_0"), 4.5);
  const std::string context = std::to_string(kContext);
  const auto theirs = find_estimate(
      llama_perplexity({"-c", context, "-b", context, "--chunks", "2", "-ctk", "q4_0", "-ctv",
                        "q4_0"},
                       {}, "Final estimate"),
      "Final estimate: PPL =");
  ASSERT_TRUE(theirs);
  const PairedSummary& ours = report.rows[2].summary;
  EXPECT_EQ(fmt::format("{:.4f} {:.5f}", ours.ppl.value, ours.ppl.error),
            theirs->first + " " + theirs->second);
}

TEST(Perplexity, DoesNotDependOnHowManyCandidatesRunTogether) {
  const Model model = Model::load(tiny_model_path(), Device::kCpu);
  const auto candidates = cpu_candidates(model);
  const auto klds = [&](int n_together) {
    size_t n_calls = 0, last = 0, all = 0;
    const auto progress = [&](size_t done, size_t total) {
      ++n_calls;
      last = done;
      all = total;
    };
    const auto report = measure_perplexity(model, tiny_chunks(model, 64), candidates,
                                           {.n_chunks = 2,
                                            .n_batch = 32,
                                            .n_ubatch = 32,
                                            .n_threads = 2,
                                            .n_together = n_together,
                                            .progress = progress});
    EXPECT_EQ(last, all) << n_together;
    EXPECT_EQ(n_calls, all) << n_together;
    std::vector<double> out;
    for (const PerplexityRow& row : report.rows) {
      EXPECT_EQ(row.scores.size(), row.summary.n);
      out.push_back(row.summary.kld.value);
    }
    return out;
  };
  const std::vector<double> together = klds(-1);
  ASSERT_EQ(together.size(), 3u);
  EXPECT_GT(together[2], 0.0);
  EXPECT_EQ(klds(1), together);
  EXPECT_EQ(klds(2), together);
}

TEST(Perplexity, TypesWhoseBlocksDoNotDivideAHeadAreNotServed) {
  ModelInfo info;
  info.layers = {{.n_head_kv = 2, .d_k = 64, .d_v = 64}, {.n_head_kv = 0, .d_k = 0, .d_v = 0}};
  EXPECT_TRUE(cpu_cache_serves("q4_0", info));
  info.layers[0].d_v = 80;
  EXPECT_FALSE(cpu_cache_serves("q4_0", info));
  EXPECT_TRUE(cpu_cache_serves("f16", info));
}

TEST(Perplexity, DoesNotDependOnThreads) {
  const Model model = Model::load(tiny_model_path(), Device::kCpu);
  EXPECT_EQ(dense_on_cpu(model, 2, 64, 64, 1).ppl.value,
            dense_on_cpu(model, 2, 64, 64, 2).ppl.value);
}

TEST(Perplexity, SizesOutsideTheirLimitsAreRefused) {
  const Model model = Model::load(tiny_model_path(), Device::kCpu);
  EXPECT_NO_THROW(check_sizes(model, kMinContext, 1, 1));
  EXPECT_NO_THROW(check_sizes(model, model.n_ctx_train(), 512, 512));
  EXPECT_THROW(check_sizes(model, kMinContext - 1, 512, 512), Error);
  EXPECT_THROW(check_sizes(model, model.n_ctx_train() + 1, 512, 512), Error);
  EXPECT_THROW(check_sizes(model, 256, 0, 0), Error);
  EXPECT_THROW(check_sizes(model, 256, 64, 65), Error);
}

// Filled in member by member: GCC 12 warns of a temporary with designated members here.
ContextOptions small_context(int n_outputs) {
  ContextOptions options;
  options.n_ctx = 256;
  options.n_batch = options.n_ubatch = 8;
  options.n_outputs = n_outputs;
  return options;
}

TEST(Context, RefusesMoreThanItWasMadeFor) {
  const Model model = Model::load(tiny_model_path(), Device::kCpu);
  Context context(model, small_context(4));
  const std::vector<int32_t> tokens = testing::tiny_tokens(9, 1);
  EXPECT_THROW(context.decode(tokens, 0, 0), Error);
  EXPECT_THROW(context.decode(std::span(tokens).first(8), 0, 3), Error);
  EXPECT_EQ(context.decode(std::span(tokens).first(8), 0, 4).size(),
            4u * static_cast<size_t>(model.n_vocab()));
  EXPECT_TRUE(context.decode(std::span(tokens).first(1), 8, 9).empty());
}

TEST(Context, ClearForgetsTheSequence) {
  const Model model = Model::load(tiny_model_path(), Device::kCpu);
  Context context(model, small_context(8));
  const std::vector<int32_t> a = testing::tiny_tokens(8, 1);
  const std::vector<int32_t> b = testing::tiny_tokens(8, 2);
  const auto copy = [](std::span<const float> rows) {
    return std::vector(rows.begin(), rows.end());
  };
  const auto first = copy(context.decode(a, 0, 0));
  const auto continued = copy(context.decode(b, 8, 8));
  context.clear();
  const auto alone = copy(context.decode(b, 0, 0));
  context.clear();
  EXPECT_NE(alone, continued);
  EXPECT_EQ(copy(context.decode(a, 0, 0)), first);
}

TEST(Model, FilesThatAreNoModelsAreRefusedInOneLine) {
  const std::string text = scratch_file("not-a-model.gguf", "hello");
  for (const std::string& path : {text, scratch_dir(), scratch_dir() + "/missing.gguf"}) {
    try {
      Model::load(path, Device::kCpu);
      FAIL() << path << " accepted";
    } catch (const Error& e) {
      const std::string message = e.what();
      EXPECT_NE(message.find(path), std::string::npos) << message;
      EXPECT_EQ(message.find('\n'), std::string::npos) << message;
    }
  }
}

TEST(Text, LosesItsLastNewlineOnly) {
  EXPECT_EQ(read_text(scratch_file("two.txt", "a\n\n")).text, "a\n");
  EXPECT_EQ(read_text(scratch_file("none.txt", "a")).text, "a");
  EXPECT_THROW(read_text(scratch_file("empty.txt", "\n")), Error);
  EXPECT_THROW(read_text(scratch_dir() + "/missing.txt"), Error);
  EXPECT_THROW(read_text(scratch_dir()), Error);
}

}  // namespace
}  // namespace headq
