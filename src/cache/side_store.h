#pragma once

#include <bit>
#include <cstdint>
#include <memory>
#include <vector>

#include "cache/dense_pool.h"
#include "codec/codec.h"
#include "codec/codec_kernels.h"
#include "core/lazy_memory.h"

namespace headq {

// Keys or values of one layer: blocks of 64 cells, each cell packed, dense (f16), both while an
// attention op is under way, or absent. Knows rows and codes, not time.
class SideStore {
 public:
  // codecs: one a head, or empty when the side stays dense.
  SideStore(int n_head, int head_dim, std::vector<std::unique_ptr<Codec>> codecs, size_t n_blocks,
            DensePool& pool);
  ~SideStore();
  SideStore(const SideStore&) = delete;
  SideStore& operator=(const SideStore&) = delete;

  int n_head() const { return n_head_; }
  int head_dim() const { return head_dim_; }
  int row_stride() const { return stride_; }  // halves from one dense row of a head to the next
  size_t row_elements() const { return static_cast<size_t>(n_head_) * static_cast<size_t>(head_dim_); }
  bool is_dense() const { return codecs_.empty(); }
  const Codec& codec(int head) const { return *codecs_[static_cast<size_t>(head)]; }

  uint64_t packed_mask(size_t block) const { return blocks_[block].packed_mask; }
  uint64_t dense_mask(size_t block) const { return blocks_[block].dense_mask; }
  uint64_t held_mask(size_t block) const { return packed_mask(block) | dense_mask(block); }

  // Packed bytes of one head's block; valid when packed_mask is not 0.
  // Blocks of a head lie side by side, packed_stride(head) apart.
  const uint8_t* packed(size_t block, int head) const {
    return packed_.data() + packed_offset(block, head);
  }
  size_t packed_stride(int head) const { return packed_bytes_of_[static_cast<size_t>(head)]; }

  // Dense row of a cell that is in dense_mask: [row_stride()], zeros behind head_dim.
  const Half* dense_row(size_t block, int head, int t) const {
    const Block& b = blocks_[block];
    const int index = b.capacity == kBlockTokens
                          ? t
                          : std::popcount(b.dense_mask & ((uint64_t{1} << t) - 1));
    return b.dense.get() +
           (static_cast<size_t>(head) * b.capacity + static_cast<size_t>(index)) * static_cast<size_t>(stride_);
  }

  // True while dense rows of the block stand at their own places, row t at index t.
  bool is_open(size_t block) const { return blocks_[block].capacity == kBlockTokens; }

  // Whether the codecs have to be told how much attention was paid to each cell until its block is
  // coded. That is kept for blocks with cells that were put since: paid_to() [64] of one head, the sum
  // over queries of p^2; null for other blocks. Heads may be added to in parallel.
  bool wants_paid() const { return !codecs_.empty() && codecs_.front()->wants_paid(); }
  float* paid_to(size_t block, int head) {
    return keeps_paid(block) ? paid_[block].get() + head * kBlockTokens : nullptr;
  }
  bool keeps_paid(size_t block) const { return block < paid_.size() && paid_[block] != nullptr; }

  // Writes the row of a cell, [n_head][head_dim]; what was there before is gone. Rows that come as
  // f16 are taken for ones that get() gave: a block of nothing else is coded by Codec::reencode().
  void put(size_t block, int t, const float* row);
  void put(size_t block, int t, const Half* row);
  // Reads it back as f16, decoded where it is packed, zeros where absent.
  void get(size_t block, int t, Half* row) const;
  // The f32 row of one head, likewise.
  void get_head(size_t block, int head, int t, float* row) const;

  // Codes the cells of mask (all held) anew, head by head: begin, then every head (heads may run in
  // parallel), then end. Dense rows stay until drop_dense().
  void begin_pack(size_t block);
  void pack_head(size_t block, int head, uint64_t mask);
  void end_pack(size_t block, uint64_t mask);

  // Gives dense rows back except those in keep.
  void drop_dense(size_t block, uint64_t keep);

  void erase(size_t block, uint64_t mask);
  void copy_block(const SideStore& from, size_t from_block, size_t to_block);

  size_t packed_bytes() const { return packed_bytes_; }  // 0: nothing is packed
  size_t meta_bytes() const {
    return blocks_.capacity() * sizeof(Block) + paid_.capacity() * sizeof(paid_[0]) + paid_bytes_;
  }

 private:
  struct Block {
    uint64_t packed_mask = 0;
    uint64_t dense_mask = 0;
    uint64_t restored_mask = 0;  // cells whose row came as f16
    DensePool::Chunk dense;      // [n_head][capacity][stride_]
    uint32_t capacity = 0;       // 64: row t at index t; less: rows of dense_mask in order
    bool has_packed = false;     // its part of packed_ is in use
  };

  size_t chunk_halves(uint32_t capacity) const {
    return static_cast<size_t>(n_head_) * capacity * static_cast<size_t>(stride_);
  }
  Half* open_row(size_t block, int head, int t);
  void open(Block& block);
  void begin_put(size_t block, int t);
  void free_dense(Block& block);
  void free_packed(Block& block);
  size_t packed_offset(size_t block, int head) const {
    const size_t h = static_cast<size_t>(head);
    return head_offset_[h] * blocks_.size() + block * packed_bytes_of_[h];
  }
  uint8_t* packed_head(size_t block, int head) { return packed_.data() + packed_offset(block, head); }
  size_t block_bytes() const { return head_offset_.back(); }  // of all heads
  void free_paid(size_t block);
  size_t paid_block_floats() const { return static_cast<size_t>(n_head_) * kBlockTokens; }
  void copy_dense_rows(const Block& from, uint64_t mask, Block& to);

  int n_head_;
  int head_dim_;
  int stride_;
  std::vector<size_t> packed_bytes_of_;  // a head's block
  std::vector<size_t> head_offset_;      // sums of these, [n_head + 1]
  std::vector<std::unique_ptr<Codec>> codecs_;
  std::vector<Block> blocks_;
  LazyMemory packed_;  // [n_head][n_blocks] blocks
  std::vector<std::unique_ptr<float[]>> paid_;  // by block [n_head][64]; empty unless wanted
  DensePool& pool_;
  const CodecKernels& kernels_;
  size_t packed_bytes_ = 0;
  size_t paid_bytes_ = 0;
};

}  // namespace headq
