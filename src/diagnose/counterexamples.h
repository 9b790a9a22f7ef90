#pragma once

#include <span>
#include <string>
#include <vector>

#include "diagnose/readings.h"
#include "diagnose/stats.h"

namespace headq {

// Experiment 2: pairs of codecs at equal bits, on one query head, of which the one with the lower
// measure does more harm, by attention KL and by output error.

struct Counterexample {
  int layer = 0;
  int head = 0;  // query head of the layer
  double bits = 0;
  std::string stored_better;  // the codec with the lower storage MSE
  std::string read_better;    // the one that does less harm
  double mse[2] = {};         // of stored_better, read_better
  double kl[2] = {};
  double output_error[2] = {};
  MeanError kl_difference;  // paired over queries, stored_better - read_better, > 0
  MeanError output_difference;
};

// How often one measure orders pairs the wrong way round.
struct Reversals {
  size_t n_pairs = 0;        // equal bits, the measure differs by more than kMargin
  size_t n_reversed = 0;     // the lower one has the higher KL and the higher output error
  size_t n_significant = 0;  // and both differences are above twice their standard errors
  MeanError share;           // n_reversed / n_pairs as a mean over KV heads
  MeanError significant_share;
};

struct Counterexamples {
  // Pairs whose measures are closer than this are ties.
  static constexpr double kMargin = 0.05;
  static constexpr size_t kMostShown = 20;

  Reversals by_mse;
  Reversals by_fisher;  // the control: the same count for the method's measure
  // Significant ones by MSE, at most one for each pair of codecs, the largest first: by the lesser
  // of the ratios of KL and of output error.
  std::vector<Counterexample> shown;
};

Counterexamples find_counterexamples(std::span<const HeadReadings> heads);

}  // namespace headq
