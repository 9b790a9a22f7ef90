#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headq/calibrate.h"
#include "headq/profile.h"
#include "runner/model.h"
#include "runner/perplexity.h"
#include "runner/text.h"

namespace headq {

// A chunk of one of several texts.
struct ChunkRef {
  int text = 0;
  int chunk = 0;

  bool operator==(const ChunkRef&) const = default;
};

inline constexpr int kDefaultCalibrationChunks = 8;

// n_asked chunks dealt in turn from the texts, each from its start, so that shares differ by one at
// most; -1: kDefaultCalibrationChunks, or as many as all texts can give equal shares of. Throws
// Error(kInvalidArgument) naming the text that has too few.
std::vector<ChunkRef> deal_chunks(std::span<const ChunkedText> texts, int n_asked);

inline constexpr int kCalibrationSamples = 8192;  // tokens that codes of nib are fitted to

struct CalibrationOptions {
  int n_chunks = -1;
  int n_threads = 1;
  NibOptions nib = {};      // its progress and n_threads are set from here
  ProgressFn progress = {};      // of the chunks
  ProgressFn fit_progress = {};  // of fitting codes of nib
};

// Runs the texts through the model with a dense cache, one chunk a graph, and makes a profile of
// what attention sees; complete but for its sources. texts must have the same n_ctx. Gives the same
// profile for the same input whatever the number of threads. Throws Error(kInvalidArgument) when
// the model is not on Device::kPlugin.
Profile calibrate(const Model& model, std::span<const ChunkedText> texts,
                  const CalibrationOptions& options);

}  // namespace headq
