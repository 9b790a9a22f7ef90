#pragma once

#include <cstddef>
#include <cstdint>

#include "attention/attention.h"

namespace headq {

// The unit of attention work: a tile (some query rows of one stream and one KV head, with all query
// heads of its group) against a piece (16 blocks of cells). Pieces are fixed, so their partial
// results, merged in order, do not depend on the number of threads or rows.
//
// A partial is, for each query of the tile: running maximum m, sum l of exp(s - m), dense
// accumulator [value row stride], coded accumulator [n_coords].
class PieceContext {
 public:
  static constexpr int kPieceBlocks = 16;
  static constexpr int kPieceTokens = kPieceBlocks * kBlockTokens;
  static constexpr int kTileQueries = 16;  // query rows times heads of a group, at most (or one row)

  PieceContext(const LayerCache& cache, const Kernels& kernels, const AttentionInputs& in,
               const uint64_t* visible, int n_blocks, const float* slopes);

  size_t n_tiles() const { return n_tiles_; }
  size_t n_pieces() const { return n_pieces_; }
  size_t partial_floats() const { return static_cast<size_t>(max_queries_) * query_floats_; }
  size_t scratch_floats() const;

  // Computes a partial; false when no query of the tile sees a cell of the piece.
  bool run_piece(size_t tile, size_t piece, float* scratch, float* partial) const;
  void reset(float* partial) const;
  void merge(const float* from, float* into) const;
  // Writes the tile's rows of the output.
  void finish(size_t tile, const float* total) const;

 private:
  struct Tile {
    int stream = 0;  // of the op
    int kv_head = 0;
    int first_row = 0;
    int n_rows = 0;
    int n_queries = 0;  // n_rows * heads of the group
  };
  struct Work;  // scratch, laid out

  // Sizes of a side's work space, the largest over its heads; zeros for a dense side.
  struct CodecSizes {
    size_t n_coef = 0, n_segments = 0, n_terms = 0, n_unpacked = 0, n_groups = 0, n_params = 0;
    size_t n_value_terms = 0, n_coords = 0;

    explicit CodecSizes(const SideStore& side);
  };

  Tile tile_at(size_t index) const;
  Work work_at(float* scratch) const;
  const uint64_t* visible_row(const Tile& tile, int row) const {
    return visible_ + (static_cast<size_t>(tile.stream) * static_cast<size_t>(in_.n_rows) +
                       static_cast<size_t>(tile.first_row + row)) * static_cast<size_t>(n_blocks_);
  }
  size_t cache_block(const Tile& tile, int block) const {
    return static_cast<size_t>(in_.first_stream + tile.stream) *
               static_cast<size_t>(cache_.blocks_per_stream()) + static_cast<size_t>(block);
  }
  uint64_t own_stamp(const Tile& tile, int row) const {
    return cache_.written()[static_cast<size_t>(tile.stream * in_.n_rows + tile.first_row + row)].stamp;
  }
  uint64_t packed_cells(const SideStore& side, size_t block, uint64_t own_stamp) const;

  void load_params(const Codec& codec, const uint8_t* packed, float* params) const;
  void load_queries(const Tile& tile, Work& work) const;
  void score_block(const Tile& tile, int block, float* scores, Work& work) const;
  void score_packed(const Codec& codec, const uint8_t* packed, int query, Work& work, float* out) const;
  void make_query_tables(const Codec& codec, int query, Work& work) const;
  void adjust_scores(const Tile& tile, int query, int block, uint64_t visible, float* scores) const;
  void weigh_block(const Tile& tile, int block, const float* weights, float* partial,
                   Work& work) const;
  void weigh_packed(const Codec& codec, const uint8_t* packed, const float* p, float* acc,
                    Work& work) const;

  const LayerCache& cache_;
  const Kernels& kernels_;
  const AttentionInputs& in_;
  const uint64_t* visible_;
  int n_blocks_;
  const float* slopes_;
  CodecSizes key_sizes_, value_sizes_;
  int group_;        // query heads per KV head
  int tile_rows_;    // query rows per tile
  int max_queries_;  // per tile
  size_t tiles_per_stream_;
  size_t n_tiles_;
  size_t n_pieces_;
  int key_stride_, value_stride_;
  size_t query_floats_;  // of a partial, per query
};

}  // namespace headq
