#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "headq/profile.h"
#include "headq/spec.h"

namespace headq {

// What one attention op saw: post-RoPE queries and the keys and values of the same rows. Rows are
// consecutive positions of one sequence.
struct Observation {
  int layer = 0;
  int n_rows = 0;
  int n_head = 0;     // query heads, a multiple of n_head_kv
  int n_head_kv = 0;
  int d_k = 0, d_v = 0;
  float scale = 1.0f;           // logit scale
  float softcap = 0.0f;         // of logits, 0: none
  float max_bias = 0.0f;        // ALiBi, 0: none
  std::span<const float> q;     // [n_rows][n_head][d_k]
  std::span<const float> k;     // [n_rows][n_head_kv][d_k]
  std::span<const float> v;     // [n_rows][n_head_kv][d_v]
  std::span<const float> mask;  // [n_rows][n_rows], additive
};

// Which codes of nib to fit, and how. The booleans are for ablations (docs/nib.md).
struct NibOptions {
  KvSpec kv;                   // sides that are nib get codes
  bool fisher_weight = true;   // queries count by how undecided they are
  bool token_weight = true;    // keys and values count by the attention paid to them
  bool score_metric = true;    // keys: E[q q^T]
  bool readout_metric = true;  // values: what W_O makes of them in the residual stream
  bool drop_key_mean = true;
  bool allocate = true;        // rates differ by layer and head
  int key_reach = 8;           // a nibble also codes the coordinates of the next, if at most so many;
  int value_reach = 8;         // 0: no trellis
  int max_group = 8;           // most coordinates that share a nibble
  double shrink = 0.02;        // of the score metric towards a multiple of the identity
  int n_threads = 1;
  std::function<void(size_t done, size_t total)> progress = {};
};

// Bits per element of keys and of values.
struct SideRates {
  double keys = 0.0, values = 0.0;
};

// Squared errors that are comparable within a side, not between the sides.
struct SideErrors {
  double keys = 0.0, values = 0.0;
};

// What errors of a layer's attention output do to the residual stream: for each query head the matrix
// A = E[1 / |x|^2]^(1/2) W_h^T W_h with W_h its part of W_O and x the residual stream that the result is
// added to (docs/nib.md, "The metric").
struct LayerReadout {
  int d_v = 0;
  std::vector<float> metric;  // [n_head][d_v][d_v]
};

struct CalibratorOptions {
  int skip_first = 4;   // positions left out at the start of each chunk: attention sinks, which stay
                        // dense in the cache and would distort the moments
  int lag = 64;         // newest tokens that a query reads dense: the window and half a block
  int n_samples = 0;    // tokens kept for fitting codes of nib, 0: none are to be fitted
  int n_threads = 1;
};

struct NibHead;  // what one head's codes are fitted to

// Collects the moments and samples a profile is made of. Memory: O(d_k^2) doubles per layer and KV
// head, and n_samples rows of f16. The result depends only on the observations and their order. Not
// thread-safe.
class Calibrator {
 public:
  explicit Calibrator(const CalibratorOptions& options = {});
  ~Calibrator();
  Calibrator(const Calibrator&) = delete;
  Calibrator& operator=(const Calibrator&) = delete;

  // The next observation of each layer starts at position 0.
  void begin_chunk();
  // Throws Error(kInvalidArgument) when spans and shape disagree, Error(kMismatch) when a layer
  // changes its shape.
  void observe(const Observation& observation);

  // How the values of a layer are read. Rates and transforms of values take it into account when every
  // layer has one. False when it does not fit the heads that were observed there; it is not taken then.
  bool set_readout(int layer, LayerReadout readout);

  // Tokens that took part, counted at the first layer seen.
  uint64_t n_tokens() const;

  // Shapes, bases, spectra, means and energies; provenance is the caller's to fill in. The basis of
  // a KV head is the eigenvectors of E[q q^T] over all query heads of its group (the method's query
  // PCA; the second moment is not centred, because a key error e costs E[(q.e)^2] = e^T E[q q^T] e).
  // Throws Error(kInvalidArgument) when fewer tokens than d_k took part.
  Profile finish() const;

  // Fits the codes of nib and puts them into what finish() gave. Throws Error(kInvalidArgument) when
  // no samples were kept.
  void fit_nib(const NibOptions& options, Profile& profile) const;

  // What codes of these rates are expected to leave, without fitting them.
  std::vector<SideErrors> expected_errors(const NibOptions& options,
                                          std::span<const SideRates> rates) const;

 private:
  struct Layer;

  std::vector<NibHead> nib_heads() const;

  std::map<int, std::unique_ptr<Layer>> layers_;
  std::map<int, LayerReadout> readouts_;
  CalibratorOptions options_;
};

}  // namespace headq
