#pragma once

#include <span>
#include <string>
#include <vector>

#include "diagnose/readings.h"
#include "diagnose/stats.h"

namespace headq {

// Experiment 5: the correction added, left out, and subtracted. Bits are the same for the first and
// the last, and so is the magnitude of what they do to the scores.

struct DirectionRow {
  std::string codec;
  MeanError kl;  // over KV heads
  MeanError fisher;
  MeanError output_error;
  MeanError kl_ratio;  // geometric mean over heads of KL over that without the correction
};

struct Direction {
  size_t n_heads = 0;
  DirectionRow right, none, wrong;
  MeanError ordered;  // share of heads with KL right < none < wrong
};

// Throws Error(kInvalidArgument) when a head lacks one of the three codecs.
Direction direction(std::span<const HeadReadings> heads);

}  // namespace headq
