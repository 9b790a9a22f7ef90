#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "cache/side_store.h"
#include "headq/profile.h"
#include "headq/spec.h"

namespace headq {

// What a layer's cache holds, in bytes of real storage.
struct CacheBytes {
  size_t n_cells = 0;          // cells that hold a row
  size_t elements = 0;         // key and value elements of those cells
  size_t packed_elements = 0;  // the part that is read packed
  size_t packed = 0;           // codes and parameters
  size_t meta = 0;             // bookkeeping per block
};

// Keys and values of one layer and the rule which of them a query reads packed
// (docs/architecture.md, "Read semantics"):
//
// Every row written to a stream takes the next stamp of that stream. A block is read packed by a
// query with own stamp T iff all its cells hold rows and each is at least `window` stamps older than
// T; otherwise its rows are read dense where there are dense rows. Sink cells are always dense.
//
// One graph writes a layer once (write_keys, write_values), then reads it once: prepare(),
// attention, finish_read(). Not thread-safe; the attention op between the two may read from many
// threads.
class LayerCache {
 public:
  // profile may be null. Throws Error from the codecs' limits or when profile and shape disagree.
  LayerCache(int layer, const LayerShape& shape, const CacheSpec& spec, const Profile* profile,
             int n_cells, int n_streams, DensePool& pool);

  int layer() const { return layer_; }
  const LayerShape& shape() const { return shape_; }
  int n_cells() const { return n_cells_; }  // of one stream
  int n_streams() const { return n_streams_; }
  int sinks() const { return sinks_; }
  int blocks_per_stream() const { return blocks_per_stream_; }
  const SideStore& keys() const { return keys_; }
  const SideStore& values() const { return values_; }

  // Rows [n][n_head_kv * head_dim], row i at rows + i * row_stride floats, to cell cells[i]
  // (stream * n_cells + cell). write_keys begins a new graph for this layer.
  void write_keys(std::span<const int64_t> cells, const float* rows, size_t row_stride);
  void write_values(std::span<const int64_t> cells, const float* rows, size_t row_stride);

  // The rows of this graph: row i of stream s is at index begin(s) + i; empty after clear().
  struct WrittenRow {
    int64_t cell = 0;
    uint64_t stamp = 0;
  };
  std::span<const WrittenRow> written() const { return written_; }

  // Marks the cells of written rows whose flag is set as sinks, and codes every block that the
  // newest written row of its stream reads packed. Dense rows stay for the older rows of the graph.
  // Values whose codec wants_paid() are left to code_paid().
  void prepare(std::span<const uint8_t> is_sink, int n_threads);

  // For values of which those bits depend on the attention paid to them until their block is coded: the
  // blocks of a stream that are waiting (as cells 0.. / 64), the first own stamp that reads one of them
  // packed, and the coding of those that a query of this stamp reads so. Queries before it have to be
  // added first.
  bool wants_paid() const { return values_.wants_paid(); }
  std::vector<int> waiting_blocks(int stream) const;
  uint64_t next_paid_from(int stream) const;
  void code_paid(int stream, uint64_t own_stamp, int n_threads);
  // Where the sum of p^2 of one head's queries is kept for a waiting block, [64].
  float* paid_to(int stream, int block, int head) {
    return values_.paid_to(static_cast<size_t>(stream * blocks_per_stream_ + block), head);
  }
  // Frees the dense rows that every later query reads packed.
  void finish_read() { drop_ready(0); }

  // The own stamp from which a query reads what it can of a block packed.
  uint64_t packed_from(size_t block) const {
    const BlockMeta& meta = meta_[block];
    return meta.present == full_mask(block) ? meta.max_stamp + window_ : ~uint64_t{0};
  }
  bool reads_packed(size_t block, uint64_t own_stamp) const { return packed_from(block) <= own_stamp; }
  uint64_t present(size_t block) const { return meta_[block].present; }
  size_t block_of(int64_t cell) const {
    return static_cast<size_t>(cell / n_cells_ * blocks_per_stream_ + cell % n_cells_ / kBlockTokens);
  }
  int slot_of(int64_t cell) const { return static_cast<int>(cell % n_cells_ % kBlockTokens); }

  // State of rows as f16, for saving, restoring and copying sequences. Rows of n consecutive cells,
  // [n][n_head_kv * head_dim]. set_keys gives fresh stamps and takes the first `sinks` rows of the
  // call for sinks; set_values must follow for the same cells.
  void get_keys(int64_t cell, size_t n, Half* rows) const { get(keys_, cell, n, rows); }
  void get_values(int64_t cell, size_t n, Half* rows) const { get(values_, cell, n, rows); }
  void set_keys(int64_t cell, size_t n, const Half* rows, int n_threads);
  void set_values(int64_t cell, size_t n, const Half* rows, int n_threads);

  void erase_keys(int64_t cell, size_t n);
  void erase_values(int64_t cell, size_t n);
  void clear();
  void copy_keys(const LayerCache& from, int from_stream, int to_stream);
  void copy_values(const LayerCache& from, int from_stream, int to_stream);

  // Rewrites keys in place: rotate(cells, rows) gets the f32 rows [n][n_head_kv * d_k] of the cells
  // for which selects(cell) holds, block by block; blocks that were packed are packed again.
  using Rotate = std::function<void(std::span<const int64_t> cells, float* rows)>;
  void rewrite_keys(const std::function<bool(int64_t)>& selects, const Rotate& rotate, int n_threads);

  CacheBytes bytes() const;

 private:
  struct BlockMeta {
    uint64_t present = 0;  // cells that hold a row
    uint64_t sinks = 0;
    uint64_t max_stamp = 0;
  };
  struct PackTask {
    SideStore* side;
    size_t block;
    int head;
    uint64_t mask;
  };

  uint64_t full_mask(size_t block) const;
  void stamp_cell(int64_t cell);
  void mark_open(size_t block);
  uint64_t newest_stamp(size_t block) const {
    return next_stamp_[block / static_cast<size_t>(blocks_per_stream_)] - 1;
  }
  void collect_pack_tasks(SideStore& side, size_t block, std::vector<PackTask>& tasks);
  void run_pack_tasks(std::vector<PackTask>& tasks, int n_threads);
  void pack_restored(int n_threads);
  void drop_ready(uint64_t ahead);
  void get(const SideStore& side, int64_t cell, size_t n, Half* rows) const;

  int layer_;
  LayerShape shape_;
  uint64_t window_;
  int sinks_;
  int n_cells_;
  int n_streams_;
  int blocks_per_stream_;
  SideStore keys_;
  SideStore values_;
  std::vector<BlockMeta> meta_;
  std::vector<uint64_t> next_stamp_;  // by stream; the first row's stamp is 1
  std::vector<size_t> open_;          // blocks with rows that may yet be packed
  std::vector<WrittenRow> written_;
};

}  // namespace headq
