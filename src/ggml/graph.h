#pragma once

#include <ggml-backend-impl.h>

#include <map>
#include <memory>
#include <vector>

#include "attention/attention.h"
#include "ggml/kv_buffer.h"

namespace headq {

// Whether the HEADQ device runs an op: reads and writes of its own KV caches and views. An op on a
// cache that it cannot run is refused through PluginState::refuse_next_allocation.
bool supports_op(const ggml_tensor* op);

// Runs graphs; one a backend instance.
class GraphRunner {
 public:
  GraphRunner();
  ~GraphRunner();

  void set_n_threads(int n) { n_threads_ = n; }
  ggml_status compute(const ggml_cgraph* graph);

 private:
  void run(const ggml_tensor* op);
  void set_rows(const ggml_tensor* op);
  void attend(const ggml_tensor* op);
  void rope(const ggml_tensor* op);
  void observe(const ggml_tensor* op, const LayerCache& cache) const;

  int n_threads_ = 1;
  Attention attention_;
  std::vector<int64_t> cells_;  // of the op that writes rows
  ggml_backend_t cpu_ = nullptr;  // for ROPE, made on first use
  // Rows of the current graph by layer, kept while an observer is set.
  struct Written {
    std::vector<float> k, v;
  };
  std::map<int, Written> written_;
};

}  // namespace headq
