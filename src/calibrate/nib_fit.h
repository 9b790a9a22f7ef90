#pragma once

#include <Eigen/Dense>
#include <span>
#include <vector>

#include "calibrate/samples.h"
#include "headq/calibrate.h"

namespace headq {

// What one head's codes are fitted to.
struct NibHead {
  const TokenSamples* samples = nullptr;
  double scale = 1.0;       // of logits
  Eigen::MatrixXd second;  // E[q q^T]
  Eigen::MatrixXd fisher;  // E[w q q^T], w = sum_j p_ij (1 - p_ij)
  Eigen::MatrixXd readout;  // LayerReadout of the group's heads, by their A^2; the identity without one
};

// Fits the codes of all heads and puts them into profiles [heads].
void fit_heads(const NibOptions& options, std::span<const NibHead> heads,
               std::span<HeadProfile> profiles);

// What both sides are expected to leave at these rates, summed over the heads.
std::vector<SideErrors> expected_errors(const NibOptions& options, std::span<const NibHead> heads,
                                        std::span<const SideRates> rates);

}  // namespace headq
