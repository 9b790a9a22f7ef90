#pragma once

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "runner/logit_source.h"
#include "runner/metrics.h"
#include "runner/model.h"
#include "runner/text.h"

namespace headq {

// Steps done so far and in all.
using ProgressFn = std::function<void(size_t done, size_t total)>;

// Scores candidates against a reference in lockstep: each batch of a chunk goes through the
// reference and then through one candidate after the other, and rows are compared while they are
// there, so no more than one batch of logits per source is alive. Positions n_ctx/2 .. n_ctx-2 of a
// chunk are scored, each by the token that follows it.
struct LockstepOptions {
  int n_chunks = 1;   // 1..text.n_chunks()
  int n_batch = 512;  // tokens of one decode() call
  int n_threads = 1;  // that compare rows; the scores do not depend on it
  ProgressFn progress = {};
};

// Returns [candidates][n_chunks * (n_ctx - 1 - n_ctx/2)] scores in the order of the text. Throws
// Error(kMismatch) when a source gives another number of logits than asked for, and what a source
// throws.
std::vector<std::vector<PairedScore>> score_lockstep(const ChunkedText& text,
                                                     LogitSource& reference,
                                                     std::span<LogitSource* const> candidates,
                                                     int n_vocab, const LockstepOptions& options);

// A cache to be measured.
struct CacheCandidate {
  std::string name;
  CacheSpec cache = {};
  std::string profile = {};  // path, or ""
  // The same model on Device::kCpu, which then runs with llama.cpp's own cache in place of `cache`.
  const Model* cpu_model = nullptr;
  std::string cpu_cache = "f16";
};

// Candidates by their specs, all with one profile.
std::vector<CacheCandidate> candidates_of(std::span<const CacheSpec> specs,
                                          const std::string& profile);

// Perplexity of one cache and its distance from the dense cache.
struct PerplexityRow {
  std::string name;       // of the candidate; candidates_of: "K/V" with "L:K/V" overrides
  PairedSummary summary;  // against dense
  CacheStats cache;       // at the end of the last chunk; all zero for llama.cpp's own
  std::vector<PairedScore> scores;  // what summary is of, in the order of the text
};

struct PerplexityReport {
  int n_chunks = 0;
  size_t n_scored = 0;
  Estimate dense_ppl;
  CacheStats dense_cache;
  std::vector<PerplexityRow> rows;
};

struct PerplexityOptions {
  int n_chunks = -1;  // -1: all the text has
  int n_batch = 512;
  int n_ubatch = 512;
  int n_threads = 1;
  // Candidates whose caches and logits are in memory at once, each such group beside a run of the
  // dense cache of its own; -1: all. The figures do not depend on it.
  int n_together = -1;
  ProgressFn progress = {};
};

inline constexpr int kMinContext = 16;

// Throws Error(kInvalidArgument) when n_ctx is not in kMinContext..n_ctx_train, a batch size is not
// positive, or a micro-batch is larger than a batch.
void check_sizes(const Model& model, int n_ctx, int n_batch, int n_ubatch);

// Chunks to run: the ones the text has, or the n_asked that were asked for (-1: all). Throws
// Error(kInvalidArgument) when the text has fewer.
int chunks_to_run(const ChunkedText& text, int n_asked);

// Measures every candidate against the dense cache (of the plugin, or llama.cpp's own on Device::kCpu,
// where they must be dense).
PerplexityReport measure_perplexity(const Model& model, const ChunkedText& text,
                                    std::span<const CacheCandidate> candidates,
                                    const PerplexityOptions& options);

}  // namespace headq
