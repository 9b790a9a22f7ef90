#pragma once

#include <string>
#include <vector>

#include "diagnose/head_sample.h"
#include "runner/model.h"
#include "runner/perplexity.h"
#include "runner/text.h"

namespace headq {

struct HeadSampleOptions {
  int n_calibration = 4;  // first chunks of the text, for the profile
  int n_chunks = 2;       // the chunks after them, which are sampled
  int n_heads = 96;       // most KV heads, evenly spaced over the model
  SamplerOptions sampler;
  std::vector<double> nib_rates = {};  // of codes to fit on the calibration chunks, for both sides
  int n_threads = 1;
  ProgressFn progress = {};      // of the chunks
  ProgressFn fit_progress = {};  // of the codes
};

struct HeadSamples {
  std::vector<HeadSample> samples;  // with the codes of all rates
  std::vector<Profile> profiles;    // of the calibration chunks, one for each rate, or one alone
};

inline constexpr int kMinSampleContext = 256;  // so that queries read some packed blocks

// Throws Error: kInvalidArgument when n_ctx or a number is outside its limits or the text has too
// few chunks, kUnsupported when the model at path adds something to its scores that the observer
// does not show (ALiBi, learned sinks).
void check_head_samples(const Model& model, const std::string& path, const ChunkedText& text,
                        const HeadSampleOptions& options);

// Runs the text through the model with a dense cache, one chunk a graph: the first chunks make the
// profiles, the next ones the samples and the oracle profile. Samples without a query that reads a
// packed block (short sliding windows) are left out. The result is the same for the same input,
// whatever the number of threads. Throws what check_head_samples() throws.
HeadSamples collect_head_samples(const Model& model, const std::string& path,
                                 const ChunkedText& text, const HeadSampleOptions& options);

}  // namespace headq
