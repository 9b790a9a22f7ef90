#include "cli/ablation.h"

#include <fmt/format.h>

#include <functional>

#include "cli/progress.h"
#include "headq/error.h"
#include "runner/calibration.h"

namespace headq {
namespace {

// One row of the table: what it changes of the fit, or of how the cache is read.
struct Change {
  const char* name;
  std::function<void(NibOptions&)> fit;
  std::function<void(CacheSpec&)> read;
};

void wrong_sign(CacheSpec& cache) {
  if (cache.kv.k.is_nib()) cache.kv.k.wrong_sign = 8;
}

void random_basis(NibOptions& nib) {
  for (CodecSpec* side : {&nib.kv.k, &nib.kv.v}) {
    if (side->is_nib()) side->side_basis = SideBasis::kRandom;
  }
}

const std::vector<Change>& changes() {
  static const std::vector<Change> all = {
      {"as it is", {}, {}},
      {"queries not weighted by Fisher", [](NibOptions& n) { n.fisher_weight = false; }, {}},
      {"tokens not weighted (A2)", [](NibOptions& n) { n.token_weight = false; }, {}},
      {"keys without the score metric", [](NibOptions& n) { n.score_metric = false; }, {}},
      {"values without the readout metric", [](NibOptions& n) { n.readout_metric = false; }, {}},
      {"mean of keys kept", [](NibOptions& n) { n.drop_key_mean = false; }, {}},
      {"one rate for all heads", [](NibOptions& n) { n.allocate = false; }, {}},
      {"no trellis for keys", [](NibOptions& n) { n.key_reach = 0; }, {}},
      {"no trellis for values", [](NibOptions& n) { n.value_reach = 0; }, {}},
      {"groups of one or two only", [](NibOptions& n) { n.max_group = 2; }, {}},
      {"groups of up to four", [](NibOptions& n) { n.max_group = 4; }, {}},
      {"random basis", random_basis, {}},
      {"wrong sign of the last 8 nibbles", {}, wrong_sign},
      {"sinks 0", {}, [](CacheSpec& c) { c.sinks = 0; }},
      {"window 0", {}, [](CacheSpec& c) { c.window = 0; }},
      {"window 128", {}, [](CacheSpec& c) { c.window = 128; }},
  };
  return all;
}

}  // namespace

std::vector<CacheCandidate> ablation(const Model& model, const CacheSpec& base,
                                     std::span<const std::string> texts, int n_threads,
                                     const TempFolder& folder) {
  if (!base.kv.k.is_nib() && !base.kv.v.is_nib()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--ablate takes codecs of nib, not {}", base.kv.to_string()));
  }
  const int n_ctx = default_calibration_context(model);
  std::vector<ChunkedText> chunked;
  for (const std::string& path : texts) {
    const TextFile file = read_text(path);
    chunked.emplace_back(file.name, model.tokenize(file.text), n_ctx, model.bos());
  }
  NibOptions nib;
  nib.kv = base.kv;
  nib.n_threads = n_threads;
  Progress progress("calibrate");
  const Calibration calibration(
      model, chunked,
      {.n_threads = n_threads,
       .nib = nib,
       .progress = [&](size_t done, size_t total) { progress.update(done, total); }});
  std::vector<CacheCandidate> candidates;
  Progress fit_progress("fit codes");
  for (const Change& change : changes()) {
    CacheCandidate candidate{change.name, base, folder.file("as-it-is.gguf")};
    if (change.read) change.read(candidate.cache);
    if (change.fit || candidates.empty()) {
      NibOptions changed = nib;
      if (change.fit) change.fit(changed);
      candidate.cache.kv = changed.kv;
      candidate.profile = change.fit ? folder.file(fmt::format("{}.gguf", candidates.size()))
                                     : candidate.profile;
      calibration.profile(changed).save(candidate.profile);
    }
    candidates.push_back(std::move(candidate));
    fit_progress.update(candidates.size(), changes().size());
  }
  return candidates;
}

}  // namespace headq
