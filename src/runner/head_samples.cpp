#include "runner/head_samples.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/file.h"
#include "core/gguf.h"
#include "headq/calibrate.h"
#include "headq/error.h"
#include "runner/calibration.h"
#include "runner/observing.h"

namespace headq {
namespace {

void check_range(const char* name, int value, int low, int high) {
  if (value >= low && value <= high) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("{} {} is not in {}..{}", name, value, low, high));
}

bool has_learned_sinks(const std::string& path) {
  const MappedFile file(path);
  const GgufFile gguf = GgufFile::parse(file.bytes(), path);
  return std::any_of(gguf.tensors().begin(), gguf.tensors().end(), [](const GgufTensor& tensor) {
    return tensor.name.find("attn_sinks") != std::string::npos;
  });
}

const HeadProfile& head_of(const Profile& profile, int layer, int head) {
  const int entry = profile.find_layer(layer);
  return profile.layer_heads(entry)[static_cast<size_t>(head)];
}

// Samples of the chunks [first, first + n) and their own profile.
std::vector<HeadSample> sample_chunks(const Model& model, const ChunkedText& text, int first,
                                      const HeadSampleOptions& options, Profile& oracle,
                                      const std::function<void()>& step) {
  HeadSampler sampler(choose_heads(model.info().layers, options.n_heads), options.sampler);
  Calibrator calibrator({.skip_first = options.sampler.sinks});
  std::vector<std::vector<int32_t>> chunks;
  for (int i = 0; i < options.n_chunks; ++i) chunks.push_back(text.input(first + i));
  observe_chunks(model, chunks, options.n_threads,
                 {.begin_chunk = [&] { calibrator.begin_chunk(); },
                  .observe =
                      [&](const Observation& observation) {
                        calibrator.observe(observation);
                        sampler.observe(observation);
                      },
                  .chunk_done = step});
  oracle = calibrator.finish();
  return sampler.take();
}

NibOptions nib_options(double rate, int n_threads) {
  NibOptions nib;
  nib.kv = KvSpec::parse(fmt::format("nib{}", rate));
  nib.n_threads = n_threads;
  return nib;
}

// The profiles of the calibration chunks.
std::vector<Profile> fit_profiles(const Calibration& calibration,
                                  const HeadSampleOptions& options) {
  if (options.nib_rates.empty()) return {calibration.profile({})};
  std::vector<Profile> profiles;
  for (double rate : options.nib_rates) {
    NibOptions nib = nib_options(rate, options.n_threads);
    const size_t n_before = profiles.size();
    nib.progress = [&](size_t done, size_t total) {
      if (!options.fit_progress) return;
      options.fit_progress(n_before * total + done, options.nib_rates.size() * total);
    };
    profiles.push_back(calibration.profile(nib));
  }
  return profiles;
}

void add_profiles(std::span<const Profile> profiles, const HeadSampleOptions& options,
                  HeadSample& sample) {
  sample.profile = head_of(profiles[0], sample.layer, sample.head);
  for (size_t i = 0; i < options.nib_rates.size(); ++i) {
    const HeadProfile& head = head_of(profiles[i], sample.layer, sample.head);
    sample.codes.push_back(
        {KvSpec::parse(profiles[i].nib).k, head.key_nib, head.value_nib});
  }
  sample.profile.key_nib = {};
  sample.profile.value_nib = {};
}

}  // namespace

void check_head_samples(const Model& model, const std::string& path, const ChunkedText& text,
                        const HeadSampleOptions& options) {
  check_range("-c", text.n_ctx(), kMinSampleContext, model.n_ctx_train());
  check_range("--calibration-chunks", options.n_calibration, 1, text.n_chunks());
  check_range("--heads", options.n_heads, 1, 1 << 20);
  check_range("--queries", options.sampler.n_queries, 1, text.n_ctx() / 2);
  const int rest = text.n_chunks() - options.n_calibration;
  if (options.n_chunks < 1 || options.n_chunks > rest) {
    throw Error(
        ErrorCode::kInvalidArgument,
        fmt::format("--chunks {} is not in 1..{}, the chunks of {} tokens that '{}' has "
                    "after {} for calibration",
                    options.n_chunks, rest, text.n_ctx(), text.name(), options.n_calibration));
  }
  if (has_learned_sinks(path)) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("model '{}' has learned attention sinks, which diagnose does not know", path));
  }
}

HeadSamples collect_head_samples(const Model& model, const std::string& path,
                                 const ChunkedText& text, const HeadSampleOptions& options) {
  check_head_samples(model, path, text, options);
  const size_t n_steps = static_cast<size_t>(options.n_calibration + options.n_chunks);
  size_t done = 0;
  const auto step = [&] {
    if (options.progress) options.progress(++done, n_steps);
  };
  HeadSamples out;
  Profile oracle;
  {
    const Calibration calibration(
        model, std::span(&text, 1),
        {.n_chunks = options.n_calibration,
         .n_threads = options.n_threads,
         .nib = options.nib_rates.empty() ? NibOptions()
                                          : nib_options(options.nib_rates[0], options.n_threads),
         .progress = [&](size_t, size_t) { step(); }});
    out.samples = sample_chunks(model, text, options.n_calibration, options, oracle, step);
    out.profiles = fit_profiles(calibration, options);
  }
  for (HeadSample& sample : out.samples) {
    add_profiles(out.profiles, options, sample);
    sample.oracle = head_of(oracle, sample.layer, sample.head);
  }
  return out;
}

}  // namespace headq
