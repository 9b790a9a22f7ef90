#pragma once

#include <memory>
#include <vector>

#include "bench/workload.h"

namespace headq::bench {

// The same keys and values as f16, as llama.cpp's own cache holds them.
class F16Caches {
 public:
  // Throws Error(kUnsupported) without a CPU backend.
  F16Caches(const Workload& text, int n_layers);
  ~F16Caches();
  F16Caches(const F16Caches&) = delete;
  F16Caches& operator=(const F16Caches&) = delete;

  const Workload& text() const { return text_; }
  int n_layers() const { return n_layers_; }

 private:
  friend class F16Attention;
  struct Tensors;

  const Workload& text_;
  int n_layers_;
  std::unique_ptr<Tensors> tensors_;
};

// ggml's own flash attention of the newest n_rows queries, as llama.cpp's graphs ask for it.
class F16Attention {
 public:
  F16Attention(F16Caches& caches, int group, int n_rows);
  ~F16Attention();
  F16Attention(const F16Attention&) = delete;
  F16Attention& operator=(const F16Attention&) = delete;

  // Seconds that the op took.
  double run(int layer, int n_threads);
  // Of the last run: [n_rows][n_head][d_v].
  std::vector<float> output() const;

 private:
  struct Graphs;

  F16Caches& caches_;
  std::unique_ptr<Graphs> graphs_;
};

}  // namespace headq::bench
