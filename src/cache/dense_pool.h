#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "core/half.h"

namespace headq {

// Dense rows on loan. One pool serves all layers of a cache, so the rows of a long prompt batch that
// one layer gives back after its attention are the next layer's. Not thread-safe.
class DensePool {
 public:
  using Chunk = std::unique_ptr<Half[]>;

  Chunk acquire(size_t n_halves) {
    std::vector<Chunk>& free_list = free_[n_halves];
    in_use_ += n_halves * sizeof(Half);
    if (free_list.empty()) return std::make_unique_for_overwrite<Half[]>(n_halves);
    Chunk chunk = std::move(free_list.back());
    free_list.pop_back();
    idle_ -= n_halves * sizeof(Half);
    return chunk;
  }

  void release(Chunk chunk, size_t n_halves) {
    in_use_ -= n_halves * sizeof(Half);
    std::vector<Chunk>& free_list = free_[n_halves];
    if (free_list.size() >= kMaxIdleChunks) return;
    free_list.push_back(std::move(chunk));
    idle_ += n_halves * sizeof(Half);
  }

  size_t bytes() const { return in_use_ + idle_; }  // idle chunks are held too

 private:
  static constexpr size_t kMaxIdleChunks = 4;  // of one size

  std::map<size_t, std::vector<Chunk>> free_;
  size_t in_use_ = 0;
  size_t idle_ = 0;
};

}  // namespace headq
