#pragma once

#include <cstddef>

#include "ggml/plugin_api.h"
#include "headq/calibrate.h"

namespace headq {

// What the plugin's observer is shown, with the spans that its shape says.
inline Observation observation_of(const headq_observation& o) {
  const auto size = [](int a, int b, int c) {
    return static_cast<size_t>(a) * static_cast<size_t>(b) * static_cast<size_t>(c);
  };
  return {.layer = o.layer,
          .n_rows = o.n_rows,
          .n_head = o.n_head,
          .n_head_kv = o.n_head_kv,
          .d_k = o.d_k,
          .d_v = o.d_v,
          .scale = o.scale,
          .softcap = o.softcap,
          .max_bias = o.max_bias,
          .q = {o.q, size(o.n_rows, o.n_head, o.d_k)},
          .k = {o.k, size(o.n_rows, o.n_head_kv, o.d_k)},
          .v = {o.v, size(o.n_rows, o.n_head_kv, o.d_v)},
          .mask = {o.mask, size(o.n_rows, o.n_rows, 1)}};
}

}  // namespace headq
