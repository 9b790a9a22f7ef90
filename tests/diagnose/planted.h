#pragma once

#include <cmath>
#include <random>
#include <vector>

#include "diagnose/head_sample.h"
#include "headq/calibrate.h"

namespace headq::testing {

struct PlantedOptions {
  int n_tokens = 320;
  int d = 32;
  int n_group = 1;
  int n_queries = 6;     // positions, evenly from the middle on
  int query_axis = -1;   // queries point along this axis alone; -1: everywhere
  float query_size = 1;  // standard deviation of their components
  float key_mean = 0;    // of every channel, times 1 + channel % 3
  float scale = 1;
  float softcap = 0;
  int n_chunks = 1;
  uint64_t seed = 1;
};

// A number on a grid of 1/64, so that small integers can be added to it exactly.
inline float on_grid(double x) { return static_cast<float>(std::round(64 * x) / 64); }

// A head with known queries, keys and values; window 32, sinks 4. Its profiles are calibrated on
// the very chunks.
inline HeadSample planted_head(const PlantedOptions& o) {
  std::mt19937_64 random(o.seed);
  std::normal_distribution<double> normal;
  HeadSample sample;
  sample.n_group = o.n_group;
  sample.d_k = sample.d_v = o.d;
  sample.scale = o.scale;
  sample.softcap = o.softcap;
  Calibrator calibrator({.skip_first = 4});
  for (int c = 0; c < o.n_chunks; ++c) {
    SampleChunk chunk;
    chunk.n_tokens = o.n_tokens;
    for (int i = 0; i < o.n_tokens * o.d; ++i) {
      const float mean = o.key_mean * static_cast<float>(1 + i % o.d % 3);
      chunk.k.push_back(on_grid(normal(random)) + mean);
      chunk.v.push_back(on_grid(normal(random)));
    }
    std::vector<float> all_queries(static_cast<size_t>(o.n_tokens * o.n_group * o.d), 0.0f);
    for (size_t i = 0; i < all_queries.size(); ++i) {
      const int axis = static_cast<int>(i) % o.d;
      if (o.query_axis >= 0 && axis != o.query_axis) continue;
      all_queries[i] = o.query_size * static_cast<float>(normal(random));
    }
    for (int i = 1; i <= o.n_queries; ++i) {
      const int position = o.n_tokens / 2 - 1 + i * (o.n_tokens / 2) / o.n_queries;
      for (int g = 0; g < o.n_group; ++g) {
        chunk.queries.push_back({g, 0, position, (position + 1 - 32) / 64 * 64});
        const auto row = all_queries.begin() + (position * o.n_group + g) * o.d;
        chunk.q.insert(chunk.q.end(), row, row + o.d);
      }
    }
    const std::vector<int> from_start(static_cast<size_t>(o.n_tokens), 0);
    for (int g = 0; g < o.n_group; ++g) {
      std::vector<float> q;
      for (int t = 0; t < o.n_tokens; ++t) {
        const auto row = all_queries.begin() + (t * o.n_group + g) * o.d;
        q.insert(q.end(), row, row + o.d);
      }
      add_paid_attention({.n_tokens = o.n_tokens,
                          .d = o.d,
                          .scale = o.scale,
                          .softcap = o.softcap,
                          .q = q,
                          .k = chunk.k,
                          .first = from_start},
                         chunk.paid);
    }
    Observation seen;
    seen.n_rows = o.n_tokens;
    seen.n_head = o.n_group;
    seen.n_head_kv = 1;
    seen.d_k = seen.d_v = o.d;
    seen.q = all_queries;
    seen.k = chunk.k;
    seen.v = chunk.v;
    calibrator.begin_chunk();
    calibrator.observe(seen);
    sample.chunks.push_back(std::move(chunk));
  }
  sample.profile = sample.oracle = calibrator.finish().heads.front();
  return sample;
}

// The keys of a sample's chunks.
inline std::vector<std::vector<float>> keys_of(const HeadSample& sample) {
  std::vector<std::vector<float>> keys;
  for (const SampleChunk& chunk : sample.chunks) keys.push_back(chunk.k);
  return keys;
}

}  // namespace headq::testing
