#pragma once

#include <span>
#include <string>
#include <vector>

#include "cli/temp_folder.h"
#include "runner/perplexity.h"

namespace headq {

// The cache `base`, whose keys or values are nib, and the same with one part of the method changed,
// each with a profile in the folder, all from one calibration on the texts (docs/nib.md). Throws
// Error(kInvalidArgument) when neither side is nib.
std::vector<CacheCandidate> ablation(const Model& model, const CacheSpec& base,
                                     std::span<const std::string> texts, int n_threads,
                                     const TempFolder& folder);

}  // namespace headq
