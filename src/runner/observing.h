#pragma once

#include <utility>

#include "headq/calibrate.h"
#include "runner/plugin.h"

namespace headq {

// What the plugin's observer is shown, with the spans that its shape says.
inline Observation observation_of(const headq_observation& o) {
  const auto size = [](int a, int b, int c) {
    return static_cast<size_t>(a) * static_cast<size_t>(b) * static_cast<size_t>(c);
  };
  Observation out;
  out.layer = o.layer;
  out.n_rows = o.n_rows;
  out.n_head = o.n_head;
  out.n_head_kv = o.n_head_kv;
  out.d_k = o.d_k;
  out.d_v = o.d_v;
  out.scale = o.scale;
  out.softcap = o.softcap;
  out.max_bias = o.max_bias;
  out.q = {o.q, size(o.n_rows, o.n_head, o.d_k)};
  out.k = {o.k, size(o.n_rows, o.n_head_kv, o.d_k)};
  out.v = {o.v, size(o.n_rows, o.n_head_kv, o.d_v)};
  out.mask = {o.mask, size(o.n_rows, o.n_rows, 1)};
  return out;
}

// Observes attention while it lives; takes the observer away whatever ends the run.
class ScopedObserver {
 public:
  ScopedObserver(Plugin& plugin, Plugin::Observer observer) : plugin_(plugin) {
    plugin_.set_observer(std::move(observer));
  }
  ~ScopedObserver() { plugin_.set_observer({}); }
  ScopedObserver(const ScopedObserver&) = delete;
  ScopedObserver& operator=(const ScopedObserver&) = delete;

 private:
  Plugin& plugin_;
};

}  // namespace headq
