#pragma once

#include <cstddef>

#include "core/half.h"

namespace headq {

// One attention op over a layer's cache:
//   out = softmax(softcap(scale * q.k) + slope * mask, and the head's sink logit) . v
// Query row i of stream s belongs to the i-th row that was written to that stream in this graph.
struct AttentionInputs {
  int n_rows = 0;        // per stream
  int n_streams = 1;     // streams first_stream .. first_stream + n_streams - 1
  int first_stream = 0;
  size_t first_written = 0;  // of LayerCache::written(): row 0 of the first stream
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

}  // namespace headq
