#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/kernels.h"
#include "cache/layer_cache.h"

namespace headq {

// One attention op over a layer's cache:
//   out = softmax(softcap(scale * q.k) + slope * mask, and the head's sink logit) . v
// Query row i of stream s belongs to the i-th row that was written to that stream in this graph.
struct AttentionInputs {
  int n_rows = 0;        // per stream
  int n_streams = 1;     // streams first_stream .. first_stream + n_streams - 1
  int first_stream = 0;
  int n_head = 0;        // query heads; a multiple of the KV heads
  int n_kv = 0;          // cells 0 .. n_kv - 1 of each stream may be seen
  float scale = 1.0f;
  float max_bias = 0.0f;  // ALiBi; 0: slope 1
  float softcap = 0.0f;   // 0: none

  const float* q = nullptr;  // element (stream, row, head, c) at the strides below (in floats) + c
  size_t q_stream = 0, q_row = 0, q_head = 0;
  const Half* mask = nullptr;  // element (stream, row, cell); null: every cell is seen
  size_t mask_stream = 0, mask_row = 0;
  const float* sinks = nullptr;  // [n_head] logits that take part in the softmax without a value
  float* out = nullptr;          // [n_streams][n_rows][n_head][d_v]
};

// ALiBi slopes of the heads (Press, Smith, Lewis 2021, section 3; for head counts that are no power
// of two, the odd slopes of the next one); all 1 without a bias.
std::vector<float> alibi_slopes(int n_head, float max_bias);

// Runs attention ops with one kernel set. Keeps its work space, so one object serves one graph at a
// time; the result does not depend on n_threads or on how rows are split into ops.
class Attention {
 public:
  explicit Attention(const Kernels& kernels) : kernels_(kernels) {}

  // Throws Error(kUnsupported) when the rows do not match what was written.
  void run(LayerCache& cache, const AttentionInputs& in, int n_threads);

  const Kernels& kernels() const { return kernels_; }

 private:
  const Kernels& kernels_;
  std::vector<uint64_t> visible_;  // [n_streams][n_rows][blocks]
  std::vector<uint8_t> is_sink_;   // [n_streams][n_rows]
  std::vector<float> slopes_;      // [n_head]
  std::vector<float> partials_;    // see piece.h
  std::vector<uint8_t> ran_;       // [tiles][pieces] the piece had something to see
  std::vector<std::vector<float>> scratch_;  // by thread
};

}  // namespace headq
