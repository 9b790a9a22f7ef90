#include "cache/layer_cache.h"

#include <fmt/format.h>

#include <algorithm>

#include "core/parallel.h"
#include "headq/error.h"

namespace headq {
namespace {

enum class Side { kKeys, kValues };

std::vector<std::unique_ptr<Codec>> make_codecs(int layer, const LayerShape& shape,
                                                const KvSpec& spec, const Profile* profile,
                                                Side side) {
  std::span<const HeadProfile> heads;
  if (profile != nullptr) {
    const int entry = profile->find_layer(layer);
    if (entry < 0) {
      throw Error(ErrorCode::kMismatch, fmt::format("the profile has no layer {}", layer));
    }
    const LayerShape& known = profile->shapes[static_cast<size_t>(entry)];
    if (!(known == shape)) {
      throw Error(ErrorCode::kMismatch,
                  fmt::format("layer {}: the profile is for {} KV heads of {}/{} channels, the model "
                              "has {} of {}/{}",
                              layer, known.n_head_kv, known.d_k, known.d_v, shape.n_head_kv,
                              shape.d_k, shape.d_v));
    }
    heads = profile->layer_heads(entry);
    if (const std::string why = profile->why_lacks(spec); !why.empty()) {
      throw Error(ErrorCode::kMismatch, why);
    }
  }
  std::vector<std::unique_ptr<Codec>> codecs;
  for (int h = 0; h < shape.n_head_kv; ++h) {
    const HeadProfile* head = heads.empty() ? nullptr : &heads[static_cast<size_t>(h)];
    std::unique_ptr<Codec> codec;
    if (side == Side::kKeys) {
      codec = make_key_codec(spec.k, shape.d_k, head, layer, h);
    } else {
      codec = make_value_codec(spec.v, shape.d_v, head);
    }
    if (codec == nullptr) return {};
    codecs.push_back(std::move(codec));
  }
  return codecs;
}

int blocks_for(int n_cells) { return (n_cells + kBlockTokens - 1) / kBlockTokens; }

uint64_t low_bits(int n) { return n >= 64 ? ~uint64_t{0} : (uint64_t{1} << n) - 1; }

}  // namespace

LayerCache::LayerCache(int layer, const LayerShape& shape, const CacheSpec& spec,
                       const Profile* profile, int n_cells, int n_streams, DensePool& pool)
    : layer_(layer),
      shape_(shape),
      window_(static_cast<uint64_t>(spec.window)),
      sinks_(spec.sinks),
      n_cells_(n_cells),
      n_streams_(n_streams),
      blocks_per_stream_(blocks_for(n_cells)),
      keys_(shape.n_head_kv, shape.d_k,
            make_codecs(layer, shape, spec.layer(layer), profile, Side::kKeys),
            static_cast<size_t>(blocks_per_stream_) * static_cast<size_t>(n_streams), pool),
      values_(shape.n_head_kv, shape.d_v,
              make_codecs(layer, shape, spec.layer(layer), profile, Side::kValues),
              static_cast<size_t>(blocks_per_stream_) * static_cast<size_t>(n_streams), pool),
      meta_(static_cast<size_t>(blocks_per_stream_) * static_cast<size_t>(n_streams)),
      next_stamp_(static_cast<size_t>(n_streams), 1) {}

// The cells a block has; the last one of a stream may have fewer than 64.
uint64_t LayerCache::full_mask(size_t block) const {
  const int index = static_cast<int>(block % static_cast<size_t>(blocks_per_stream_));
  return low_bits(std::min(kBlockTokens, n_cells_ - index * kBlockTokens));
}

void LayerCache::stamp_cell(int64_t cell) {
  const size_t block = block_of(cell);
  const uint64_t bit = uint64_t{1} << slot_of(cell);
  BlockMeta& meta = meta_[block];
  meta.max_stamp = next_stamp_[static_cast<size_t>(cell / n_cells_)]++;
  meta.present |= bit;
  meta.sinks &= ~bit;
  mark_open(block);
}

void LayerCache::mark_open(size_t block) {
  if (std::find(open_.rbegin(), open_.rend(), block) == open_.rend()) open_.push_back(block);
}

void LayerCache::write_keys(std::span<const int64_t> cells, const float* rows, size_t row_stride) {
  written_.clear();
  for (size_t i = 0; i < cells.size(); ++i) {
    stamp_cell(cells[i]);
    const size_t block = block_of(cells[i]);
    written_.push_back({cells[i], meta_[block].max_stamp});
    keys_.put(block, slot_of(cells[i]), rows + i * row_stride);
  }
}

void LayerCache::write_values(std::span<const int64_t> cells, const float* rows,
                              size_t row_stride) {
  for (size_t i = 0; i < cells.size(); ++i) {
    values_.put(block_of(cells[i]), slot_of(cells[i]), rows + i * row_stride);
  }
}

void LayerCache::prepare(std::span<const uint8_t> is_sink, int n_threads) {
  for (size_t i = 0; i < is_sink.size(); ++i) {
    if (is_sink[i] == 0) continue;
    meta_[block_of(written_[i].cell)].sinks |= uint64_t{1} << slot_of(written_[i].cell);
  }
  std::vector<PackTask> tasks;
  for (size_t block : open_) {
    if (!reads_packed(block, newest_stamp(block))) continue;
    collect_pack_tasks(keys_, block, tasks);
    if (!wants_paid()) collect_pack_tasks(values_, block, tasks);
  }
  run_pack_tasks(tasks, n_threads);
}

std::vector<int> LayerCache::waiting_blocks(int stream) const {
  std::vector<int> out;
  for (size_t block : open_) {
    if (static_cast<int>(block) / blocks_per_stream_ != stream || !values_.keeps_paid(block)) continue;
    out.push_back(static_cast<int>(block) % blocks_per_stream_);
  }
  return out;
}

uint64_t LayerCache::next_paid_from(int stream) const {
  uint64_t out = ~uint64_t{0};
  for (int block : waiting_blocks(stream)) {
    out = std::min(out, packed_from(static_cast<size_t>(stream * blocks_per_stream_ + block)));
  }
  return out;
}

void LayerCache::code_paid(int stream, uint64_t own_stamp, int n_threads) {
  std::vector<PackTask> tasks;
  for (int in_stream : waiting_blocks(stream)) {
    const size_t block = static_cast<size_t>(stream * blocks_per_stream_ + in_stream);
    if (reads_packed(block, own_stamp)) collect_pack_tasks(values_, block, tasks);
  }
  run_pack_tasks(tasks, n_threads);
}

void LayerCache::collect_pack_tasks(SideStore& side, size_t block, std::vector<PackTask>& tasks) {
  const uint64_t wanted = meta_[block].present & ~meta_[block].sinks;
  if (side.is_dense() || wanted == 0 || side.packed_mask(block) == wanted) return;
  if ((side.held_mask(block) & wanted) != wanted) return;  // values still to be restored
  for (int head = 0; head < side.n_head(); ++head) tasks.push_back({&side, block, head, wanted});
}

void LayerCache::run_pack_tasks(std::vector<PackTask>& tasks, int n_threads) {
  for (const PackTask& task : tasks) task.side->begin_pack(task.block);
  parallel_for(n_threads, tasks.size(), [&](size_t i, int) {
    tasks[i].side->pack_head(tasks[i].block, tasks[i].head, tasks[i].mask);
  });
  for (const PackTask& task : tasks) task.side->end_pack(task.block, task.mask);
}

// Codes every open block that the row after the newest one of its stream will read packed.
void LayerCache::pack_restored(int n_threads) {
  std::vector<PackTask> tasks;
  for (size_t block : open_) {
    if (!reads_packed(block, newest_stamp(block) + 1)) continue;
    collect_pack_tasks(keys_, block, tasks);
    collect_pack_tasks(values_, block, tasks);
  }
  run_pack_tasks(tasks, n_threads);
}

void LayerCache::drop_ready(uint64_t ahead) {
  std::erase_if(open_, [&](size_t block) {
    const BlockMeta& meta = meta_[block];
    if (!reads_packed(block, newest_stamp(block) + ahead)) return false;
    const uint64_t wanted = meta.present & ~meta.sinks;
    bool done = true;
    for (SideStore* side : {&keys_, &values_}) {
      if (side->is_dense()) continue;
      if (side->packed_mask(block) == wanted) {
        side->drop_dense(block, meta.sinks);
      } else {
        done = false;
      }
    }
    return done;
  });
}

void LayerCache::get(const SideStore& side, int64_t cell, size_t n, Half* rows) const {
  for (size_t i = 0; i < n; ++i) {
    const int64_t at = cell + static_cast<int64_t>(i);
    side.get(block_of(at), slot_of(at), rows + i * side.row_elements());
  }
}

void LayerCache::set_keys(int64_t cell, size_t n, const Half* rows, int n_threads) {
  written_.clear();
  for (size_t i = 0; i < n; ++i) {
    const int64_t at = cell + static_cast<int64_t>(i);
    const size_t block = block_of(at);
    stamp_cell(at);
    keys_.put(block, slot_of(at), rows + i * keys_.row_elements());
    if (i < static_cast<size_t>(sinks_)) meta_[block].sinks |= uint64_t{1} << slot_of(at);
    if (slot_of(at) == kBlockTokens - 1) {  // keep the dense rows of a long restore few
      pack_restored(n_threads);
      drop_ready(1);
    }
  }
}

void LayerCache::set_values(int64_t cell, size_t n, const Half* rows, int n_threads) {
  for (size_t i = 0; i < n; ++i) {
    const int64_t at = cell + static_cast<int64_t>(i);
    mark_open(block_of(at));  // its keys may be coded, and the values that these replace
    values_.put(block_of(at), slot_of(at), rows + i * values_.row_elements());
    if (slot_of(at) == kBlockTokens - 1) {
      pack_restored(n_threads);
      drop_ready(1);
    }
  }
}

void LayerCache::erase_keys(int64_t cell, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const int64_t at = cell + static_cast<int64_t>(i);
    const uint64_t bit = uint64_t{1} << slot_of(at);
    keys_.erase(block_of(at), bit);
    meta_[block_of(at)].present &= ~bit;
    meta_[block_of(at)].sinks &= ~bit;
  }
}

void LayerCache::erase_values(int64_t cell, size_t n) {
  for (size_t i = 0; i < n; ++i) {
    const int64_t at = cell + static_cast<int64_t>(i);
    values_.erase(block_of(at), uint64_t{1} << slot_of(at));
  }
}

void LayerCache::clear() {
  for (size_t block = 0; block < meta_.size(); ++block) {
    keys_.erase(block, ~uint64_t{0});
    values_.erase(block, ~uint64_t{0});
    meta_[block] = {};
  }
  std::fill(next_stamp_.begin(), next_stamp_.end(), 1);
  open_.clear();
  written_.clear();
}

void LayerCache::copy_keys(const LayerCache& from, int from_stream, int to_stream) {
  const size_t n = static_cast<size_t>(blocks_per_stream_);
  const size_t a = static_cast<size_t>(from_stream) * n;
  const size_t b = static_cast<size_t>(to_stream) * n;
  for (size_t i = 0; i < n; ++i) {
    keys_.copy_block(from.keys_, a + i, b + i);
    meta_[b + i] = from.meta_[a + i];
  }
  next_stamp_[static_cast<size_t>(to_stream)] = from.next_stamp_[static_cast<size_t>(from_stream)];
  std::erase_if(open_, [&](size_t block) { return block >= b && block < b + n; });
  const std::vector<size_t> source_open = from.open_;
  for (size_t block : source_open) {
    if (block >= a && block < a + n) open_.push_back(block - a + b);
  }
  written_.clear();
}

void LayerCache::copy_values(const LayerCache& from, int from_stream, int to_stream) {
  const size_t n = static_cast<size_t>(blocks_per_stream_);
  for (size_t i = 0; i < n; ++i) {
    values_.copy_block(from.values_, static_cast<size_t>(from_stream) * n + i,
                       static_cast<size_t>(to_stream) * n + i);
  }
}

void LayerCache::rewrite_keys(const std::function<bool(int64_t)>& selects, const Rotate& rotate,
                              int n_threads) {
  const size_t width = keys_.row_elements();
  std::vector<int64_t> cells;
  std::vector<float> rows;
  for (size_t block = 0; block < meta_.size(); ++block) {
    cells.clear();
    const int64_t first =
        static_cast<int64_t>(block / static_cast<size_t>(blocks_per_stream_)) * n_cells_ +
        static_cast<int64_t>(block % static_cast<size_t>(blocks_per_stream_)) * kBlockTokens;
    for (uint64_t rest = keys_.held_mask(block); rest != 0; rest &= rest - 1) {
      const int64_t cell = first + std::countr_zero(rest);
      if (selects(cell)) cells.push_back(cell);
    }
    if (cells.empty()) continue;
    rows.resize(cells.size() * width);
    for (size_t i = 0; i < cells.size(); ++i) {
      for (int h = 0; h < keys_.n_head(); ++h) {
        keys_.get_head(block, h, slot_of(cells[i]), rows.data() + i * width + static_cast<size_t>(h * shape_.d_k));
      }
    }
    rotate(cells, rows.data());
    const uint64_t was_packed = keys_.packed_mask(block);
    for (size_t i = 0; i < cells.size(); ++i) {
      keys_.put(block, slot_of(cells[i]), rows.data() + i * width);
    }
    if (was_packed == 0) continue;
    std::vector<PackTask> tasks;
    for (int h = 0; h < keys_.n_head(); ++h) tasks.push_back({&keys_, block, h, was_packed});
    run_pack_tasks(tasks, n_threads);
    keys_.drop_dense(block, keys_.dense_mask(block) & ~was_packed);
  }
}

CacheBytes LayerCache::bytes() const {
  CacheBytes out;
  for (size_t block = 0; block < meta_.size(); ++block) {
    out.n_cells += static_cast<size_t>(std::popcount(meta_[block].present));
    for (const SideStore* side : {&keys_, &values_}) {
      const uint64_t packed = side->packed_mask(block);
      out.packed_elements += static_cast<size_t>(std::popcount(packed)) * side->row_elements();
    }
  }
  out.elements = out.n_cells * (keys_.row_elements() + values_.row_elements());
  out.packed = keys_.packed_bytes() + values_.packed_bytes();
  out.meta = keys_.meta_bytes() + values_.meta_bytes() + meta_.capacity() * sizeof(BlockMeta);
  return out;
}

}  // namespace headq
