#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>

#include "headq/profile.h"

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
  std::span<const float> q;     // [n_rows][n_head][d_k]
  std::span<const float> k;     // [n_rows][n_head_kv][d_k]
  std::span<const float> v;     // [n_rows][n_head_kv][d_v]
  std::span<const float> mask;  // [n_rows][n_rows], additive
};

// Collects the moments a profile is made of. Memory: O(d_k^2) doubles per layer and KV head. The
// result depends only on the observations and their order. Not thread-safe.
class Calibrator {
 public:
  // skip_first: positions left out at the start of each chunk; the first tokens are attention sinks,
  // stay dense in the cache, and would distort the moments.
  explicit Calibrator(int skip_first = 4);
  ~Calibrator();
  Calibrator(const Calibrator&) = delete;
  Calibrator& operator=(const Calibrator&) = delete;

  // The next observation of each layer starts at position 0.
  void begin_chunk();
  // Throws Error(kInvalidArgument) when spans and shape disagree, Error(kMismatch) when a layer
  // changes its shape.
  void observe(const Observation& observation);

  // Tokens that took part, counted at the first layer seen.
  uint64_t n_tokens() const;

  // Shapes, bases, spectra, means and energies; provenance is the caller's to fill in. The basis of
  // a KV head is the eigenvectors of E[q q^T] over all query heads of its group (the method's query
  // PCA; the second moment is not centred, because a key error e costs E[(q.e)^2] = e^T E[q q^T] e).
  // Throws Error(kInvalidArgument) when fewer tokens than d_k took part.
  Profile finish() const;

 private:
  struct Layer;
  std::map<int, std::unique_ptr<Layer>> layers_;
  int skip_first_;
};

}  // namespace headq
