#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/inputs.h"
#include "attention/kernels.h"
#include "attention/queries.h"
#include "cache/layer_cache.h"

namespace headq {

// The unit of attention work: a tile (some query rows of one stream and one KV head, with all query
// heads of its group) against a piece (16 blocks of cells). Pieces are fixed, so their partial
// results, merged in order, do not depend on the number of threads.
//
// A tile of few queries scans: integer tables are looked up by the codes as they lie. For many queries
// a block is decoded once, to f32 coordinates, and multiplied with all of them.
//
// A partial is, for each query of the tile: running maximum m, sum l of exp(s - m), dense
// accumulator [value row stride], coded accumulator [n_coords].
class PieceContext {
 public:
  static constexpr int kPieceBlocks = kMostValueBlocks;
  static constexpr int kPieceTokens = kPieceBlocks * kBlockTokens;

  // Whether an op scans, or decodes blocks for tiles of many queries.
  static bool scans(const LayerCache& cache, const AttentionInputs& in);

  // queries: prepared, with tables where the op scans. visible: [n_streams][n_rows][n_blocks] bits of
  // cells; biased: some visible cell's mask is not 0.
  PieceContext(const LayerCache& cache, const Kernels& kernels, const AttentionInputs& in,
               const Queries& queries, const uint64_t* visible, bool biased, int n_blocks,
               const float* slopes);

  size_t n_tiles() const { return n_tiles_; }
  size_t n_pieces() const { return n_pieces_; }
  size_t partial_floats() const { return static_cast<size_t>(max_queries_) * query_floats_; }
  size_t scratch_floats() const;

  // Computes a partial; false when no query of the tile sees a cell of the piece.
  bool run_piece(size_t tile, size_t piece, float* scratch, float* partial) const;
  void reset(float* partial) const;
  void merge(const float* from, float* into) const;
  // Writes the tile's rows of the output. norms, where it is not null: [queries of the op][2], what
  // makes a score a weight, p = exp(s - norm[0]) * norm[1].
  void finish(size_t tile, const float* total, float* norms) const;
  // paid [64] += sum of p^2 over the tile's queries, for the cells of a block.
  void add_paid(size_t tile, int block, const float* norms, float* scratch, float* paid) const;

 private:
  struct Tile {
    int stream = 0;  // of the op
    int kv_head = 0;
    int first_row = 0;
    int n_rows = 0;
    int n_queries = 0;  // n_rows * heads of the group
    size_t first_query = 0;  // in queries_
  };
  struct Work;  // scratch, laid out

  // Which cells of a block a query row reads, and how.
  struct Cells {
    uint64_t visible = 0;
    uint64_t coded = 0;  // read packed
    uint64_t dense = 0;  // read as f16 rows
  };

  // One side's block for a tile.
  struct BlockView {
    const SideStore* side = nullptr;
    size_t at = 0;
    int kv_head = 0;
    uint64_t packed_mask = 0, dense_mask = 0;
    uint64_t packed_from = 0;         // own stamp from which a query reads packed what it can
    const Codec* codec = nullptr;     // null when nothing of the block is packed
    const uint8_t* packed = nullptr;
  };

  // Sizes of a side's work space, the largest over its heads; zeros for a dense side.
  struct CodecSizes {
    size_t n_halves = 0, n_params = 0;
    size_t n_sums = 0, n_coords = 0, n_rows = 0;  // n_rows: of Codec::coordinates()

    explicit CodecSizes(const SideStore& side);
  };

  Tile tile_at(size_t index) const;
  Work work_at(float* scratch) const;
  const uint64_t* visible_row(const Tile& tile, int row) const {
    return visible_ + (static_cast<size_t>(tile.stream) * static_cast<size_t>(in_.n_rows) +
                       static_cast<size_t>(tile.first_row + row)) * static_cast<size_t>(n_blocks_);
  }
  uint64_t own_stamp(const Tile& tile, int row) const {
    return cache_.written()[in_.first_written +
                            static_cast<size_t>(tile.stream * in_.n_rows + tile.first_row + row)].stamp;
  }
  BlockView view(const SideStore& side, const Tile& tile, int block) const;
  Cells cells(const BlockView& view, const Tile& tile, int row, int block) const {
    Cells out;
    out.visible = visible_row(tile, row)[block];
    out.coded = view.packed_mask & out.visible;
    if (own_stamp(tile, row) < view.packed_from) out.coded &= ~view.dense_mask;
    out.dense = view.dense_mask & out.visible & ~out.coded;
    return out;
  }
  static void prefetch(const BlockView& view);  // brings a packed block into the processor's caches
  void load_params(const BlockView& view, float* params) const;
  float* accumulators(float* partial, int query) const;

  void score_block(const BlockView& keys, const Tile& tile, int block, float* scores, Work& work) const;
  void scan_segment(const BlockView& keys, const Tile& tile, size_t index, Work& work) const;
  void scan_block(const BlockView& keys, const Tile& tile, float* scores, Work& work) const;
  void multiply_block(const BlockView& keys, const Tile& tile, int first_row, int n_rows, float* scores,
                      Work& work) const;
  void score_dense_tile(const BlockView& keys, const Tile& tile, int block, float* scores,
                        Work& work) const;
  void adjust_scores(const Tile& tile, int query, int block, uint64_t visible, float* scores) const;

  void weigh_piece(const Tile& tile, int first, uint64_t seen_blocks, float* partial, Work& work) const;
  void weigh_dense(const BlockView& values, const Tile& tile, int block, const float* weights,
                   float* partial) const;
  void weigh_codes(const Tile& tile, int first, uint64_t seen_blocks, float* partial, Work& work) const;
  void weigh_segment(const Codec& codec, const Segment& segment, const Tile& tile, int n_coded,
                     float* partial, Work& work) const;
  void weigh_block_tile(const BlockView& values, const Tile& tile, int block, const float* weights,
                        float* partial, Work& work) const;
  void accumulate_tile(const Tile& tile, const Cells* cells, uint64_t Cells::*part,
                       const float* weights, const float* rows, int stride, float* acc, Work& work) const;
  void load_dense_rows(const BlockView& view, uint64_t wanted, int stride, float* rows) const;

  const LayerCache& cache_;
  const Kernels& kernels_;
  const AttentionInputs& in_;
  const Queries& queries_;
  const uint64_t* visible_;
  bool biased_;
  int n_blocks_;
  const float* slopes_;
  CodecSizes key_sizes_, value_sizes_;
  int group_;        // query heads per KV head
  bool scans_;
  int tile_rows_;    // query rows per tile
  int max_queries_;  // per tile
  size_t tiles_per_stream_;
  size_t n_tiles_;
  size_t n_pieces_;
  int key_stride_, value_stride_;
  size_t query_floats_;  // of a partial, per query
};

}  // namespace headq
