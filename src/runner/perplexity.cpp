#include "runner/perplexity.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <memory>

#include "core/parallel.h"
#include "headq/error.h"

namespace headq {
namespace {

// Tokens of one decode() call within a chunk, and the rows of logits that come back.
struct BatchRange {
  int begin = 0;      // position of the first token
  int end = 0;        // past the last one
  int row_begin = 0;  // position of the first row, end when there is none

  int n_rows() const { return end - row_begin; }
};

std::vector<BatchRange> batches_of(int n_ctx, int n_batch) {
  std::vector<BatchRange> batches;
  for (int begin = 0; begin < n_ctx; begin += n_batch) {
    const int end = std::min(begin + n_batch, n_ctx);
    batches.push_back({begin, end, std::clamp(n_ctx / 2, begin, end)});
  }
  return batches;
}

std::span<const float> rows_of(LogitSource& source, std::span<const int32_t> input,
                               const BatchRange& batch, int n_ctx, int n_vocab) {
  const auto tokens =
      input.subspan(static_cast<size_t>(batch.begin), static_cast<size_t>(batch.end - batch.begin));
  const std::span<const float> rows = source.decode(tokens, batch.begin, n_ctx / 2);
  const size_t expected = static_cast<size_t>(batch.n_rows()) * static_cast<size_t>(n_vocab);
  if (rows.size() != expected) {
    throw Error(ErrorCode::kMismatch,
                fmt::format("{} logits came back for positions {} to {}, expected {}", rows.size(),
                            batch.begin, batch.end - 1, expected));
  }
  return rows;
}

// Appends the scores of one batch. The last row of a chunk predicts a token of the next chunk and
// is left out.
void score_batch(std::span<const float> reference, std::span<const float> candidate,
                 std::span<const int32_t> text, const BatchRange& batch, size_t n_vocab,
                 int n_threads, std::vector<PairedScore>& scores) {
  const int last = std::min(batch.end, static_cast<int>(text.size()) - 1);
  if (last <= batch.row_begin) return;
  const size_t n = static_cast<size_t>(last - batch.row_begin);
  const size_t base = scores.size();
  scores.resize(base + n);
  std::atomic<bool> failed = false;
  parallel_for(n_threads, n, [&](size_t i, int) {
    try {
      scores[base + i] = paired_score(reference.subspan(i * n_vocab, n_vocab),
                                      candidate.subspan(i * n_vocab, n_vocab),
                                      text[static_cast<size_t>(batch.row_begin) + i + 1]);
    } catch (const Error&) {
      failed = true;
    }
  });
  if (failed) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the model gives logits that are not finite at positions {} to {}",
                            batch.row_begin, last - 1));
  }
}

std::string describe(const CacheSpec& spec) {
  const std::string layers = layers_to_string(spec);
  return layers.empty() ? spec.kv.to_string() : spec.kv.to_string() + "," + layers;
}

}  // namespace

std::vector<std::vector<PairedScore>> score_lockstep(const ChunkedText& text,
                                                     LogitSource& reference,
                                                     std::span<LogitSource* const> candidates,
                                                     int n_vocab, const LockstepOptions& options) {
  const std::vector<BatchRange> batches = batches_of(text.n_ctx(), options.n_batch);
  const size_t n_chunks = static_cast<size_t>(options.n_chunks);
  const size_t n_steps = n_chunks * batches.size() * (1 + candidates.size());
  size_t done = 0;
  const auto step = [&] {
    if (options.progress) options.progress(++done, n_steps);
  };
  std::vector<std::vector<PairedScore>> scores(candidates.size());
  for (int chunk = 0; chunk < options.n_chunks; ++chunk) {
    const std::vector<int32_t> input = text.input(chunk);
    reference.clear();
    for (LogitSource* candidate : candidates) candidate->clear();
    for (const BatchRange& batch : batches) {
      const auto expected = rows_of(reference, input, batch, text.n_ctx(), n_vocab);
      step();
      for (size_t i = 0; i < candidates.size(); ++i) {
        const auto rows = rows_of(*candidates[i], input, batch, text.n_ctx(), n_vocab);
        score_batch(expected, rows, text.text(chunk), batch, static_cast<size_t>(n_vocab),
                    options.n_threads, scores[i]);
        step();
      }
    }
  }
  return scores;
}

std::vector<CacheCandidate> candidates_of(std::span<const CacheSpec> specs,
                                          const std::string& profile) {
  std::vector<CacheCandidate> out;
  for (const CacheSpec& spec : specs) out.push_back({describe(spec), spec, profile});
  return out;
}

void check_sizes(const Model& model, int n_ctx, int n_batch, int n_ubatch) {
  if (n_ctx < kMinContext || n_ctx > model.n_ctx_train()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("-c {} is not in {}..{} (what the model was trained on)", n_ctx,
                            kMinContext, model.n_ctx_train()));
  }
  if (n_batch < 1) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("-b {} is not positive", n_batch));
  }
  if (n_ubatch < 1 || n_ubatch > n_batch) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("-ub {} is not in 1..{} (-b)", n_ubatch, n_batch));
  }
}

int chunks_to_run(const ChunkedText& text, int n_asked) {
  if (n_asked == -1) return text.n_chunks();
  if (n_asked < 1 || n_asked > text.n_chunks()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--chunks {} is not in 1..{}, the chunks of {} tokens that '{}' has",
                            n_asked, text.n_chunks(), text.n_ctx(), text.name()));
  }
  return n_asked;
}

namespace {

std::unique_ptr<Context> context_of(const Model& model, const CacheCandidate& candidate,
                                    ContextOptions options, std::string& checked) {
  if (candidate.cpu_model != nullptr) {
    options.cpu_cache = candidate.cpu_cache;
    return std::make_unique<Context>(*candidate.cpu_model, options);
  }
  if (candidate.profile != checked) {
    if (!candidate.profile.empty()) model.check_profile(candidate.profile);
    checked = candidate.profile;
  }
  options.cache = candidate.cache;
  options.profile = candidate.profile;
  return std::make_unique<Context>(model, options);
}

// Appends the rows of candidates that are in memory at once. checked: the last profile that was
// found to be the model's.
void measure_group(const Model& model, const ChunkedText& text,
                   std::span<const CacheCandidate> candidates, const ContextOptions& options,
                   const LockstepOptions& lockstep, Context& dense, std::string& checked,
                   PerplexityReport& report) {
  std::vector<std::unique_ptr<Context>> contexts;
  std::vector<LogitSource*> sources;
  for (const CacheCandidate& candidate : candidates) {
    contexts.push_back(context_of(model, candidate, options, checked));
    sources.push_back(contexts.back().get());
  }
  auto scores = score_lockstep(text, dense, sources, model.n_vocab(), lockstep);
  for (size_t i = 0; i < candidates.size(); ++i) {
    const PairedSummary summary = summarize(scores[i]);
    report.rows.push_back(
        {candidates[i].name, summary, contexts[i]->stats(), std::move(scores[i])});
  }
}

}  // namespace

PerplexityReport measure_perplexity(const Model& model, const ChunkedText& text,
                                    std::span<const CacheCandidate> candidates,
                                    const PerplexityOptions& options) {
  check_sizes(model, text.n_ctx(), options.n_batch, options.n_ubatch);
  if (candidates.empty()) throw Error(ErrorCode::kInvalidArgument, "no cache to measure");
  PerplexityReport report;
  report.n_chunks = chunks_to_run(text, options.n_chunks);
  const int n_batch = std::min(options.n_batch, text.n_ctx());
  ContextOptions context = {.n_ctx = text.n_ctx(),
                            .n_batch = n_batch,
                            .n_ubatch = std::min(options.n_ubatch, n_batch),
                            .n_outputs = std::min(n_batch, text.n_ctx() - text.n_ctx() / 2),
                            .n_threads = options.n_threads,
                            .cache = {},
                            .profile = ""};
  Context dense(model, context);
  const size_t n = candidates.size();
  const size_t together =
      options.n_together < 1 ? n : std::min(static_cast<size_t>(options.n_together), n);
  const size_t n_groups = (n + together - 1) / together;
  const size_t n_steps = static_cast<size_t>(report.n_chunks) *
                         batches_of(text.n_ctx(), n_batch).size() * (n + n_groups);
  size_t done = 0;
  LockstepOptions lockstep = {
      .n_chunks = report.n_chunks, .n_batch = n_batch, .n_threads = options.n_threads};
  if (options.progress) {
    lockstep.progress = [&](size_t, size_t) { options.progress(++done, n_steps); };
  }
  std::string checked;  // candidates often share a profile
  for (size_t begin = 0; begin < n; begin += together) {
    const auto group = candidates.subspan(begin, std::min(together, n - begin));
    measure_group(model, text, group, context, lockstep, dense, checked, report);
  }
  report.dense_cache = dense.stats();
  report.n_scored = report.rows.front().summary.n;
  report.dense_ppl = report.rows.front().summary.ppl_reference;
  return report;
}

}  // namespace headq
