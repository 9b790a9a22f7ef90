#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/inputs.h"
#include "attention/kernels.h"
#include "attention/queries.h"
#include "cache/layer_cache.h"

namespace headq {

class PieceContext;

// ALiBi slopes of the heads (Press, Smith, Lewis 2021, section 3; for head counts that are no power
// of two, the odd slopes of the next one); all 1 without a bias.
std::vector<float> alibi_slopes(int n_head, float max_bias);

// Runs attention ops with one kernel set. Keeps its work space, so that decoding allocates nothing, and one
// object serves one graph at a time. The result does not depend on n_threads; how rows are split into ops changes it by rounding,
// because few queries at once are scored by integer tables and many by decoded coordinates.
class Attention {
 public:
  explicit Attention(const Kernels& kernels) : kernels_(kernels) {}

  // Throws Error(kUnsupported) when the rows do not match what was written.
  void run(LayerCache& cache, const AttentionInputs& in, int n_threads);

  const Kernels& kernels() const { return kernels_; }

 private:
  struct Seen;

  void run_rows(LayerCache& cache, const AttentionInputs& in, const Seen& seen, int n_threads);
  void run_until_coded(LayerCache& cache, const AttentionInputs& in, const Seen& seen, int n_threads);
  void add_paid(LayerCache& cache, const AttentionInputs& in, const PieceContext& context, int n_threads);

  const Kernels& kernels_;
  std::vector<uint64_t> visible_;  // [n_streams][n_rows][blocks]
  std::vector<uint8_t> is_sink_;   // [n_streams][n_rows]
  std::vector<uint8_t> biased_;    // [n_streams][n_rows] a visible cell's mask is not 0
  std::vector<float> slopes_;      // [n_head]
  float slopes_bias_ = 0.0f;       // the bias they are of
  Queries queries_;
  std::vector<float> partials_;    // see piece.h
  std::vector<float> norms_;       // [queries of the op][2] where attention paid is kept
  std::vector<uint8_t> ran_;       // [tiles][pieces] the piece had something to see
  std::vector<std::vector<float>> scratch_;  // by thread
};

}  // namespace headq
