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

inline constexpr int kDefaultCalibrationChunks = 6;

// n_asked chunks dealt in turn from the texts, each from its start, so that shares differ by one at
// most; -1: kDefaultCalibrationChunks, or as many as all texts can give equal shares of. Throws
// Error(kInvalidArgument) naming the text that has too few.
std::vector<ChunkRef> deal_chunks(std::span<const ChunkedText> texts, int n_asked);

// Tokens of a chunk unless told: the model's training context, at most 2048.
int default_calibration_context(const Model& model);

inline constexpr int kCalibrationSamples = 8192;  // tokens that codes of nib are fitted to

struct CalibrationOptions {
  int n_chunks = -1;
  int n_threads = 1;
  NibOptions nib = {};       // no samples are kept when neither side is nib
  ProgressFn progress = {};  // of the chunks
};

// What attention saw of some texts; profiles with different codes of nib can be made from it.
class Calibration {
 public:
  // Runs the texts through the model with a dense cache, one chunk a graph. texts must have the same
  // n_ctx. Sees the same for the same input whatever the number of threads. Throws
  // Error(kInvalidArgument) when the model is not on Device::kPlugin.
  Calibration(const Model& model, std::span<const ChunkedText> texts,
              const CalibrationOptions& options);

  // Complete but for its sources.
  Profile profile(const NibOptions& nib) const;

  std::vector<SideErrors> expected_errors(const NibOptions& nib,
                                          std::span<const SideRates> rates) const {
    return calibrator_.expected_errors(nib, rates);
  }

  // Layers whose values are weighted by what W_O makes of them in the residual stream.
  int n_readouts() const { return n_readouts_; }

 private:
  const Model& model_;
  int n_ctx_;
  int n_readouts_ = 0;
  Calibrator calibrator_;
};

// The profile of one calibration.
Profile calibrate(const Model& model, std::span<const ChunkedText> texts,
                  const CalibrationOptions& options);

}  // namespace headq
