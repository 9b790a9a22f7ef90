#include "cache/side_store.h"

#include <algorithm>
#include <cstring>
#include <numeric>

namespace headq {
namespace {

int padded(int n, int multiple) { return (n + multiple - 1) / multiple * multiple; }

// Bytes of one head's block, to a multiple of 16.
std::vector<size_t> packed_sizes(const std::vector<std::unique_ptr<Codec>>& codecs) {
  std::vector<size_t> sizes;
  for (const auto& codec : codecs) {
    sizes.push_back(static_cast<size_t>(padded(static_cast<int>(codec->layout().bytes()), 16)));
  }
  return sizes;
}

std::vector<size_t> offsets_of(const std::vector<size_t>& sizes) {
  std::vector<size_t> offsets(sizes.size() + 1, 0);
  std::partial_sum(sizes.begin(), sizes.end(), offsets.begin() + 1);
  return offsets;
}

int rank_of(uint64_t mask, int t) { return std::popcount(mask & ((uint64_t{1} << t) - 1)); }

}  // namespace

SideStore::SideStore(int n_head, int head_dim, std::vector<std::unique_ptr<Codec>> codecs,
                     size_t n_blocks, DensePool& pool)
    : n_head_(n_head),
      head_dim_(head_dim),
      stride_(padded(head_dim, 16)),
      packed_bytes_of_(packed_sizes(codecs)),
      head_offset_(offsets_of(packed_bytes_of_)),
      codecs_(std::move(codecs)),
      blocks_(n_blocks),
      packed_(head_offset_.back() * n_blocks),
      pool_(pool),
      kernels_(codec_kernels()) {
  if (wants_paid()) paid_.resize(n_blocks);
}

SideStore::~SideStore() {
  for (Block& block : blocks_) free_dense(block);
}

void SideStore::free_dense(Block& block) {
  if (block.capacity != 0) pool_.release(std::move(block.dense), chunk_halves(block.capacity));
  block.dense.reset();
  block.capacity = 0;
  block.dense_mask = 0;
}

void SideStore::free_packed(Block& block) {
  block.packed_mask = 0;
  if (!block.has_packed) return;
  block.has_packed = false;
  packed_bytes_ -= block_bytes();
  if (packed_bytes_ == 0) packed_.release();
}

void SideStore::free_paid(size_t index) {
  if (!keeps_paid(index)) return;
  paid_bytes_ -= paid_block_floats() * sizeof(float);
  paid_[index].reset();
}

// Copies the dense rows in mask between chunks of any capacity; to.dense_mask must be set.
void SideStore::copy_dense_rows(const Block& from, uint64_t mask, Block& to) {
  const size_t row_bytes = static_cast<size_t>(stride_) * sizeof(Half);
  for (int head = 0; head < n_head_; ++head) {
    for (uint64_t rest = mask; rest != 0; rest &= rest - 1) {
      const int t = std::countr_zero(rest);
      const int i = from.capacity == kBlockTokens ? t : rank_of(from.dense_mask, t);
      const int j = to.capacity == kBlockTokens ? t : rank_of(to.dense_mask, t);
      const size_t h = static_cast<size_t>(head);
      std::memcpy(to.dense.get() + (h * to.capacity + static_cast<size_t>(j)) * static_cast<size_t>(stride_),
                  from.dense.get() + (h * from.capacity + static_cast<size_t>(i)) * static_cast<size_t>(stride_),
                  row_bytes);
    }
  }
}

// Gives the block a full chunk, so that any row can be written in place.
void SideStore::open(Block& block) {
  if (block.capacity == kBlockTokens) return;
  Block wide;
  wide.capacity = kBlockTokens;
  wide.dense_mask = block.dense_mask;
  wide.dense = pool_.acquire(chunk_halves(kBlockTokens));
  if (block.capacity != 0) copy_dense_rows(block, block.dense_mask, wide);
  const uint64_t mask = block.dense_mask;
  free_dense(block);
  block.dense = std::move(wide.dense);
  block.capacity = kBlockTokens;
  block.dense_mask = mask;
}

Half* SideStore::open_row(size_t index, int head, int t) {
  return blocks_[index].dense.get() +
         (static_cast<size_t>(head) * kBlockTokens + static_cast<size_t>(t)) * static_cast<size_t>(stride_);
}

// Opens the block and forgets what was paid to the cell's last row.
void SideStore::begin_put(size_t index, int t) {
  open(blocks_[index]);
  if (!wants_paid()) return;
  if (!keeps_paid(index)) {
    paid_[index] = std::make_unique<float[]>(paid_block_floats());
    paid_bytes_ += paid_block_floats() * sizeof(float);
  }
  for (int head = 0; head < n_head_; ++head) paid_to(index, head)[t] = 0.0f;
}

void SideStore::put(size_t index, int t, const float* row) {
  Block& block = blocks_[index];
  begin_put(index, t);
  for (int head = 0; head < n_head_; ++head) {
    Half* out = open_row(index, head, t);
    kernels_.to_halves(row + head * head_dim_, static_cast<size_t>(head_dim_), out);
    std::fill(out + head_dim_, out + stride_, Half{0});
  }
  block.dense_mask |= uint64_t{1} << t;
  block.packed_mask &= ~(uint64_t{1} << t);
  block.restored_mask &= ~(uint64_t{1} << t);
}

void SideStore::put(size_t index, int t, const Half* row) {
  Block& block = blocks_[index];
  begin_put(index, t);
  for (int head = 0; head < n_head_; ++head) {
    Half* out = open_row(index, head, t);
    std::copy_n(row + head * head_dim_, head_dim_, out);
    std::fill(out + head_dim_, out + stride_, Half{0});
  }
  block.dense_mask |= uint64_t{1} << t;
  block.packed_mask &= ~(uint64_t{1} << t);
  block.restored_mask |= uint64_t{1} << t;
}

void SideStore::get_head(size_t index, int head, int t, float* row) const {
  const Block& block = blocks_[index];
  if ((block.dense_mask >> t & 1) != 0) {
    const Half* in = dense_row(index, head, t);
    for (int c = 0; c < head_dim_; ++c) row[c] = half_to_float(in[c]);
  } else if ((block.packed_mask >> t & 1) != 0) {
    codec(head).decode(packed(index, head), t, row);
  } else {
    std::fill_n(row, head_dim_, 0.0f);
  }
}

void SideStore::get(size_t index, int t, Half* row) const {
  float x[kMaxHeadDim];
  for (int head = 0; head < n_head_; ++head) {
    Half* out = row + head * head_dim_;
    if ((blocks_[index].dense_mask >> t & 1) != 0) {
      std::copy_n(dense_row(index, head, t), head_dim_, out);
      continue;
    }
    get_head(index, head, t, x);
    kernels_.to_halves(x, static_cast<size_t>(head_dim_), out);
  }
}

void SideStore::begin_pack(size_t index) {
  Block& block = blocks_[index];
  if (block.has_packed) return;
  block.has_packed = true;
  packed_bytes_ += block_bytes();
}

void SideStore::pack_head(size_t index, int head, uint64_t mask) {
  float rows[kBlockTokens * kMaxHeadDim];
  for (uint64_t rest = mask; rest != 0; rest &= rest - 1) {
    const int t = std::countr_zero(rest);
    get_head(index, head, t, rows + t * head_dim_);
  }
  const Block& block = blocks_[index];
  uint8_t* out = packed_head(index, head);
  if ((mask & ~block.restored_mask) == 0) {
    codec(head).reencode(rows, mask, out);
  } else if (const float* paid = paid_to(index, head); paid != nullptr) {
    codec(head).encode_paid(rows, mask, paid, out);
  } else {
    codec(head).encode(rows, mask, out);
  }
}

void SideStore::end_pack(size_t index, uint64_t mask) {
  blocks_[index].packed_mask = mask;
  free_paid(index);
}

void SideStore::drop_dense(size_t index, uint64_t keep) {
  Block& block = blocks_[index];
  keep &= block.dense_mask;
  Block kept;
  kept.dense_mask = keep;
  kept.capacity = static_cast<uint32_t>(std::popcount(keep));
  if (kept.capacity != 0) {
    kept.dense = pool_.acquire(chunk_halves(kept.capacity));
    copy_dense_rows(block, keep, kept);
  }
  free_dense(block);
  block.dense = std::move(kept.dense);
  block.dense_mask = keep;
  block.capacity = kept.capacity;
}

void SideStore::erase(size_t index, uint64_t mask) {
  Block& block = blocks_[index];
  if ((block.packed_mask & ~mask) == 0) {
    free_packed(block);
  } else {
    block.packed_mask &= ~mask;
  }
  if ((block.dense_mask & mask) == 0) return;
  if ((block.dense_mask & ~mask) == 0) {
    free_dense(block);
    free_paid(index);
  } else {
    open(block);
    block.dense_mask &= ~mask;
  }
}

void SideStore::copy_block(const SideStore& from, size_t from_index, size_t to_index) {
  const Block& source = from.blocks_[from_index];
  Block& target = blocks_[to_index];
  free_dense(target);
  free_packed(target);
  free_paid(to_index);
  if (from.keeps_paid(from_index)) {
    paid_[to_index] = std::make_unique<float[]>(paid_block_floats());
    std::copy_n(from.paid_[from_index].get(), paid_block_floats(), paid_[to_index].get());
    paid_bytes_ += paid_block_floats() * sizeof(float);
  }
  if (source.packed_mask != 0) {
    begin_pack(to_index);
    for (int head = 0; head < n_head_; ++head) {
      std::memcpy(packed_head(to_index, head), from.packed(from_index, head), packed_stride(head));
    }
    target.packed_mask = source.packed_mask;
    target.restored_mask = source.restored_mask;
  }
  if (source.capacity != 0) {
    target.dense = pool_.acquire(chunk_halves(source.capacity));
    target.capacity = source.capacity;
    target.dense_mask = source.dense_mask;
    std::memcpy(target.dense.get(), source.dense.get(), chunk_halves(source.capacity) * sizeof(Half));
  }
}

}  // namespace headq
