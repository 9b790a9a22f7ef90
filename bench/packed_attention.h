#pragma once

#include <memory>
#include <string>
#include <vector>

#include "attention/attention.h"
#include "bench/workload.h"
#include "cache/layer_cache.h"
#include "core/isa.h"

namespace headq::bench {

// The packed caches of some layers with the same shape and contents. Read in turn they leave the
// processor's caches as the layers of a model do.
class PackedCaches {
 public:
  // Codes text into n_layers caches.
  PackedCaches(const Workload& text, const std::string& kv, int n_layers);

  const Workload& text() const { return text_; }
  int n_layers() const { return static_cast<int>(layers_.size()); }
  LayerCache& layer(int i) { return *layers_[static_cast<size_t>(i)]; }

  // Packed bytes of a token's keys and values, mean over the KV heads.
  double bytes_per_token() const;

  // Seconds that it takes to read the packed bytes of a layer once, by words that are added up.
  double read(int layer, int n_threads) const;

  // Writes the newest rows of the text again, so that an op may run. One row: the 32 newest cells
  // take turns, so that the window stays dense and all else packed, as while decoding.
  void write_rows(int layer, int n_rows);

 private:
  const Workload& text_;
  Profile profile_;
  DensePool pool_;
  std::vector<std::unique_ptr<LayerCache>> layers_;
  int turn_ = 0;
  mutable uint64_t sum_ = 0;  // of words read, so that they are
};

// An attention op of the newest n_rows queries over a PackedCaches.
class PackedAttention {
 public:
  PackedAttention(PackedCaches& caches, int group, int n_rows, Isa isa);

  // Seconds that the op took, without the writing of its rows.
  double run(int layer, int n_threads);
  const std::vector<float>& output() const { return output_; }  // [n_rows][n_head][d_v]

 private:
  PackedCaches& caches_;
  Attention attention_;
  std::vector<float> queries_;
  std::vector<Half> mask_;
  std::vector<float> output_;
  AttentionInputs inputs_;
};

// Seed of the queries of all ops, so that every path answers the same ones.
inline constexpr uint64_t kQuerySeed = 7;

}  // namespace headq::bench
