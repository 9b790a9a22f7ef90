#include "runner/calibration.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "headq/calibrate.h"
#include "headq/error.h"
#include "runner/observing.h"
#include "runner/readout.h"

namespace headq {
namespace {

bool has_nib(const NibOptions& nib) { return nib.kv.k.is_nib() || nib.kv.v.is_nib(); }

}  // namespace

int default_calibration_context(const Model& model) {
  constexpr int kMost = 2048;
  return std::min(model.n_ctx_train(), kMost);
}

std::vector<ChunkRef> deal_chunks(std::span<const ChunkedText> texts, int n_asked) {
  const int n_texts = static_cast<int>(texts.size());
  int n_chunks = n_asked;
  if (n_asked == -1) {
    int share = texts[0].n_chunks();
    for (const ChunkedText& text : texts) share = std::min(share, text.n_chunks());
    n_chunks = std::max(n_texts, std::min(kDefaultCalibrationChunks, share * n_texts));
  }
  if (n_chunks < n_texts) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--chunks {} does not give each of {} texts one", n_asked, n_texts));
  }
  std::vector<ChunkRef> dealt;
  for (int i = 0; i < n_chunks; ++i) {
    const ChunkRef ref = {.text = i % n_texts, .chunk = i / n_texts};
    const ChunkedText& text = texts[static_cast<size_t>(ref.text)];
    if (ref.chunk >= text.n_chunks()) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("--chunks {} takes more from '{}' than its {} chunks of {} tokens",
                              n_asked, text.name(), text.n_chunks(), text.n_ctx()));
    }
    dealt.push_back(ref);
  }
  return dealt;
}

Calibration::Calibration(const Model& model, std::span<const ChunkedText> texts,
                         const CalibrationOptions& options)
    : model_(model),
      n_ctx_(texts[0].n_ctx()),
      calibrator_({.n_samples = has_nib(options.nib) ? kCalibrationSamples : 0,
                   .n_threads = options.n_threads}) {
  if (model.device() != Device::kPlugin) {
    throw Error(ErrorCode::kInvalidArgument, "only a model on the plugin can be observed");
  }
  std::vector<std::vector<int32_t>> chunks;
  for (const ChunkRef& ref : deal_chunks(texts, options.n_chunks)) {
    chunks.push_back(texts[static_cast<size_t>(ref.text)].input(ref.chunk));
  }
  std::optional<ReadoutObserver> readout;
  if (has_nib(options.nib)) readout.emplace(model);
  size_t done = 0;
  observe_chunks(model, chunks, options.n_threads,
                 {.begin_chunk = [&] { calibrator_.begin_chunk(); },
                  .observe = [&](const Observation& o) { calibrator_.observe(o); },
                  .chunk_done =
                      [&] {
                        if (options.progress) options.progress(++done, chunks.size());
                      },
                  .tensors = readout ? &*readout : nullptr});
  if (!readout) return;
  for (auto& [il, layer] : readout->readouts()) {
    n_readouts_ += static_cast<int>(calibrator_.set_readout(il, layer));
  }
}

Profile Calibration::profile(const NibOptions& nib) const {
  Profile profile = calibrator_.finish();
  if (has_nib(nib)) calibrator_.fit_nib(nib, profile);
  profile.model_name = model_.info().name;
  profile.model_arch = model_.info().arch;
  profile.model_fingerprint = model_.info().fingerprint;
  profile.n_tokens = calibrator_.n_tokens();
  profile.n_ctx = n_ctx_;
  profile.tool_version = HEADQ_VERSION;
  return profile;
}

Profile calibrate(const Model& model, std::span<const ChunkedText> texts,
                  const CalibrationOptions& options) {
  return Calibration(model, texts, options).profile(options.nib);
}

}  // namespace headq
