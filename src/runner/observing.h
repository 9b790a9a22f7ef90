#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "headq/calibrate.h"
#include "runner/model.h"

namespace headq {

// What happens while chunks run through a model. All but observe may be empty.
struct ChunkObserver {
  std::function<void()> begin_chunk = {};
  std::function<void(const Observation&)> observe;  // of every layer of a chunk; may throw
  std::function<void()> chunk_done = {};
  TensorObserver* tensors = nullptr;  // of other tensors of the graphs, or null
};

// Runs chunks of equal length, the tokens of a whole context each, through a model on
// Device::kPlugin with a dense cache; a chunk is one graph, so that one observation of each layer
// holds all its rows. Throws what the observer throws.
void observe_chunks(const Model& model, std::span<const std::vector<int32_t>> chunks, int n_threads,
                    const ChunkObserver& observer);

}  // namespace headq
