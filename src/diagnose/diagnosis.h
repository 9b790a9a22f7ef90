#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include "diagnose/a2_policy.h"
#include "diagnose/counterexamples.h"
#include "diagnose/deployability.h"
#include "diagnose/direction.h"
#include "diagnose/head_sample.h"
#include "diagnose/null_space.h"
#include "diagnose/readings.h"
#include "diagnose/route_flips.h"
#include "diagnose/superiority.h"

namespace headq {

// The experiments on samples of heads, and what they say together.

// What rounding to the 16-bit floats of a dense cache does, and what the instrument makes of
// nothing at all: figures near these say nothing.
struct NoiseFloor {
  double identity_kl = 0;  // largest KL of dense keys against themselves; 0
  MeanError f16_kl;        // keys rounded to f16, over KV heads
  double f16_kl_max = 0;   // the largest over heads
  MeanError f16_flips;     // share of queries whose likeliest token changed
};

struct Diagnosis {
  size_t n_heads = 0;  // KV heads
  size_t n_queries = 0;
  NoiseFloor floor;
  Superiority superiority;
  Counterexamples counterexamples;
  NullSpace null_space;
  Deployability deployability;
  Direction direction;
  A2Policy a2_policy;
  RouteFlips route_flips;
};

struct DiagnosisOptions {
  BootstrapOptions bootstrap;  // its threads measure, too
  // Steps done so far and in all; called by one thread at a time.
  std::function<void(size_t done, size_t total)> progress = {};
};

// The result does not depend on the number of threads. Throws Error(kInvalidArgument) when there
// are no samples, and what codecs throw.
Diagnosis diagnose(std::span<const HeadSample> samples, const DiagnosisOptions& options);

}  // namespace headq
