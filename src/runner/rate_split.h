#pragma once

#include <span>

#include "runner/calibration.h"
#include "runner/perplexity.h"

namespace headq {

struct RateSplit {
  KvSpec kv;               // nib for both sides
  Profile even;            // the profile of the total rate on both sides, which was measured
  double key_kld = 0.0;    // of keys alone at the total rate, values dense
  double value_kld = 0.0;  // of values alone
};

// Splits `total` bits per element between keys and values so that their expected damage is least:
// what each side alone costs at the total rate is measured at the logits, on the last chunk of each
// text, and how it changes with the rate is taken from the expected errors (docs/nib.md). The
// profile for measuring is written to the file `scratch`.
RateSplit split_rate(const Model& model, const Calibration& calibration,
                     std::span<const ChunkedText> texts, double total, const NibOptions& nib,
                     const std::string& scratch);

}  // namespace headq
