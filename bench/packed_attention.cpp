#include "bench/packed_attention.h"

#include <algorithm>
#include <chrono>
#include <cstring>

#include "attention/dispatch.h"
#include "core/parallel.h"

namespace headq::bench {
namespace {

constexpr int kFillRows = 512;  // rows of one graph

// Codes the whole text, without attention.
void fill(const Workload& text, LayerCache& cache) {
  for (int first = 0; first < text.n_tokens; first += kFillRows) {
    const int n = std::min(kFillRows, text.n_tokens - first);
    std::vector<int64_t> cells;
    std::vector<uint8_t> is_sink;
    for (int t = first; t < first + n; ++t) {
      cells.push_back(t);
      is_sink.push_back(t < cache.sinks() ? 1 : 0);
    }
    const size_t row = static_cast<size_t>(first);
    cache.write_keys(cells, text.keys.data() + row * text.key_row(), text.key_row());
    cache.write_values(cells, text.values.data() + row * text.value_row(), text.value_row());
    cache.prepare(is_sink, 1);
    cache.finish_read();
  }
}

double bytes_of(const SideStore& side) {
  if (side.is_dense()) return static_cast<double>(side.head_dim()) * sizeof(Half);
  double bytes = 0.0;
  for (int h = 0; h < side.n_head(); ++h) {
    bytes += static_cast<double>(side.codec(h).layout().bytes()) / kBlockTokens / side.n_head();
  }
  return bytes;
}

}  // namespace

PackedCaches::PackedCaches(const Workload& text, const std::string& kv, int n_layers)
    : text_(text), profile_(fitted_profile(text.shape, kv)) {
  CacheSpec spec;
  spec.kv = KvSpec::parse(kv);
  for (int i = 0; i < n_layers; ++i) {
    layers_.push_back(
        std::make_unique<LayerCache>(0, text.shape, spec, &profile_, text.n_tokens, 1, pool_));
    fill(text, *layers_.back());
  }
}

double PackedCaches::bytes_per_token() const {
  return bytes_of(layers_[0]->keys()) + bytes_of(layers_[0]->values());
}

double PackedCaches::read(int layer, int n_threads) const {
  const LayerCache& cache = *layers_[static_cast<size_t>(layer)];
  struct Part {
    const uint8_t* begin;
    size_t n_bytes;
  };
  std::vector<Part> parts;  // a head's blocks lie side by side
  constexpr size_t kPieces = 8;
  for (const SideStore* side : {&cache.keys(), &cache.values()}) {
    for (int h = 0; h < side->n_head() && !side->is_dense(); ++h) {
      const size_t n = static_cast<size_t>(cache.blocks_per_stream()) * side->packed_stride(h) / kPieces;
      for (size_t i = 0; i < kPieces; ++i) parts.push_back({side->packed(0, h) + i * n, n});
    }
  }
  std::vector<uint64_t> sums(parts.size());
  const auto start = std::chrono::steady_clock::now();
  parallel_for(n_threads, parts.size(), [&](size_t i, int) {
    uint64_t sum[8] = {}, word;
    for (size_t at = 0; at + sizeof(sum) <= parts[i].n_bytes; at += sizeof(sum)) {
      for (size_t j = 0; j < 8; ++j) {
        std::memcpy(&word, parts[i].begin + at + j * sizeof(word), sizeof(word));
        sum[j] += word;
      }
    }
    for (uint64_t s : sum) sums[i] += s;
  });
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  for (uint64_t s : sums) sum_ += s;
  return seconds;
}

void PackedCaches::write_rows(int layer, int n_rows) {
  const int window = CacheSpec().window;
  const int first =
      n_rows > 1 ? text_.n_tokens - n_rows : text_.n_tokens - window + turn_++ % window;
  std::vector<int64_t> cells;
  for (int i = 0; i < n_rows; ++i) cells.push_back(first + i);
  const size_t row = static_cast<size_t>(first);
  LayerCache& cache = this->layer(layer);
  cache.write_keys(cells, text_.keys.data() + row * text_.key_row(), text_.key_row());
  cache.write_values(cells, text_.values.data() + row * text_.value_row(), text_.value_row());
}

PackedAttention::PackedAttention(PackedCaches& caches, int group, int n_rows, Isa isa)
    : caches_(caches),
      attention_(kernels_for(isa)),
      queries_(caches.text().queries(n_rows, group, kQuerySeed)),
      mask_(causal_mask(n_rows, caches.text().n_tokens)) {
  const LayerShape& shape = caches.text().shape;
  inputs_.n_rows = n_rows;
  inputs_.n_head = group * shape.n_head_kv;
  inputs_.n_kv = caches.text().n_tokens;
  inputs_.scale = caches.text().scale();
  inputs_.q = queries_.data();
  inputs_.q_head = static_cast<size_t>(shape.d_k);
  inputs_.q_row = inputs_.q_head * static_cast<size_t>(inputs_.n_head);
  inputs_.mask = mask_.data();
  inputs_.mask_row = static_cast<size_t>(inputs_.n_kv);
  output_.resize(static_cast<size_t>(n_rows * inputs_.n_head * shape.d_v));
  inputs_.out = output_.data();
}

double PackedAttention::run(int layer, int n_threads) {
  caches_.write_rows(layer, inputs_.n_rows);
  const auto start = std::chrono::steady_clock::now();
  attention_.run(caches_.layer(layer), inputs_, n_threads);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace headq::bench
