#include "attention/piece.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace headq {
namespace {

constexpr float kNegInf = -INFINITY;

size_t padded(size_t n) { return (n + 15) / 16 * 16; }

// Where a query's partial begins: m and l, padded to keep the accumulators aligned.
constexpr size_t kPartialHeader = 16;

// Calls fn(first, count) for each run of set bits.
template <typename Fn>
void for_runs(uint64_t bits, const Fn& fn) {
  while (bits != 0) {
    const int first = std::countr_zero(bits);
    const int count = std::countr_one(bits >> first);
    fn(first, count);
    if (first + count == 64) return;
    bits &= ~uint64_t{0} << (first + count);
  }
}

}  // namespace

PieceContext::CodecSizes::CodecSizes(const SideStore& side) {
  const auto raise = [](size_t& size, size_t value) { size = std::max(size, value); };
  for (int head = 0; head < side.n_head() && !side.is_dense(); ++head) {
    const Codec& codec = side.codec(head);
    raise(n_coef, static_cast<size_t>(codec.n_coef()));
    raise(n_segments, codec.segments().size());
    raise(n_terms, codec.patterns().size() / 16);
    raise(n_unpacked, static_cast<size_t>(codec.n_unpacked()));
    raise(n_groups, static_cast<size_t>(codec.layout().n_groups));
    raise(n_params, static_cast<size_t>(codec.layout().n_params));
    raise(n_value_terms, codec.terms().group.size());
    raise(n_coords, static_cast<size_t>(codec.n_coords()));
  }
}

// Scratch of one thread. Without block parameters the tables of a query hold for all blocks, so
// every query has its own; otherwise the first one's are made anew for each block and query.
struct PieceContext::Work {
  float* q = nullptr;          // [queries][key_stride] times scale (and 1 / softcap)
  float* coef = nullptr;       // [queries][n_coef]
  float* zero_coef = nullptr;  // [queries][segments]
  float* shared = nullptr;     // [queries]
  float* unpacked = nullptr;   // [n_unpacked]
  float* key_params = nullptr;    // [n_params] of the block
  float* value_params = nullptr;  // [value n_params]
  float* c = nullptr;             // [n_terms]
  float* tables = nullptr;        // [n_groups][16]
  float* units = nullptr;         // [queries][segments]
  uint8_t* lo = nullptr;          // [queries][n_groups][16]
  uint8_t* hi = nullptr;
  int32_t* sums = nullptr;   // [64]
  float* scores = nullptr;   // [queries][kPieceTokens], then the weights
  float* p = nullptr;        // [64]
  int16_t* w = nullptr;      // [64]
  int32_t* dots = nullptr;   // [value terms]
  size_t total = 0;          // floats

  Work(float* base, size_t queries, size_t key_stride, const CodecSizes& key,
       const CodecSizes& value) {
    const auto take = [&](auto*& pointer, size_t n_floats) {
      pointer = reinterpret_cast<std::remove_reference_t<decltype(pointer)>>(base + total);
      total += padded(n_floats);
    };
    take(q, queries * key_stride);
    take(coef, queries * key.n_coef);
    take(zero_coef, queries * key.n_segments);
    take(shared, queries);
    take(unpacked, key.n_unpacked);
    take(key_params, key.n_params);
    take(value_params, value.n_params);
    take(c, key.n_terms);
    take(tables, key.n_groups * 16);
    take(units, queries * key.n_segments);
    take(lo, queries * key.n_groups * 4);
    take(hi, queries * key.n_groups * 4);
    take(sums, kBlockTokens);
    take(scores, queries * kPieceTokens);
    take(p, kBlockTokens);
    take(w, kBlockTokens / 2);
    take(dots, value.n_value_terms);
  }
};

PieceContext::PieceContext(const LayerCache& cache, const Kernels& kernels,
                           const AttentionInputs& in, const uint64_t* visible, int n_blocks,
                           const float* slopes)
    : cache_(cache),
      kernels_(kernels),
      in_(in),
      visible_(visible),
      n_blocks_(n_blocks),
      slopes_(slopes),
      key_sizes_(cache.keys()),
      value_sizes_(cache.values()),
      group_(in.n_head / cache.shape().n_head_kv) {
  const SideStore& keys = cache.keys();
  const SideStore& values = cache.values();
  tile_rows_ = std::clamp(kTileQueries / group_, 1, std::max(in.n_rows, 1));
  max_queries_ = tile_rows_ * group_;
  const size_t row_tiles = static_cast<size_t>((in.n_rows + tile_rows_ - 1) / tile_rows_);
  tiles_per_stream_ = row_tiles * static_cast<size_t>(keys.n_head());
  n_tiles_ = tiles_per_stream_ * static_cast<size_t>(in.n_streams);
  n_pieces_ = static_cast<size_t>((n_blocks + kPieceBlocks - 1) / kPieceBlocks);
  key_stride_ = keys.row_stride();
  value_stride_ = values.row_stride();
  query_floats_ = kPartialHeader + static_cast<size_t>(value_stride_) +
                  padded(value_sizes_.n_coords);
}

PieceContext::Work PieceContext::work_at(float* scratch) const {
  return Work(scratch, static_cast<size_t>(max_queries_), static_cast<size_t>(key_stride_),
              key_sizes_, value_sizes_);
}

size_t PieceContext::scratch_floats() const { return work_at(nullptr).total; }

PieceContext::Tile PieceContext::tile_at(size_t index) const {
  const size_t in_stream = index % tiles_per_stream_;
  const size_t n_kv_heads = static_cast<size_t>(cache_.shape().n_head_kv);
  Tile tile;
  tile.stream = static_cast<int>(index / tiles_per_stream_);
  tile.kv_head = static_cast<int>(in_stream % n_kv_heads);
  tile.first_row = static_cast<int>(in_stream / n_kv_heads) * tile_rows_;
  tile.n_rows = std::min(tile_rows_, in_.n_rows - tile.first_row);
  tile.n_queries = tile.n_rows * group_;
  return tile;
}

// Cells of a block that this query reads packed on one side.
uint64_t PieceContext::packed_cells(const SideStore& side, size_t block, uint64_t own_stamp) const {
  const uint64_t packed = side.packed_mask(block);
  if (packed == 0 || cache_.reads_packed(block, own_stamp)) return packed;
  return packed & ~side.dense_mask(block);
}

void PieceContext::load_params(const Codec& codec, const uint8_t* packed, float* params) const {
  const BlockLayout& layout = codec.layout();
  kernels_.halves_to_floats(layout.params(packed), static_cast<size_t>(layout.n_params), params);
}

// Query i of a tile is head i % group of row i / group.
void PieceContext::load_queries(const Tile& tile, Work& work) const {
  const float scale = in_.softcap != 0.0f ? in_.scale / in_.softcap : in_.scale;
  const int d = cache_.shape().d_k;
  for (int i = 0; i < tile.n_queries; ++i) {
    const float* from = in_.q + static_cast<size_t>(tile.stream) * in_.q_stream +
                        static_cast<size_t>(tile.first_row + i / group_) * in_.q_row +
                        static_cast<size_t>(tile.kv_head * group_ + i % group_) * in_.q_head;
    float* q = work.q + i * key_stride_;
    for (int c = 0; c < d; ++c) q[c] = from[c] * scale;
    std::fill(q + d, q + key_stride_, 0.0f);
    if (cache_.keys().is_dense()) continue;
    const Codec& codec = cache_.keys().codec(tile.kv_head);
    const int n_segments = static_cast<int>(codec.segments().size());
    work.shared[i] =
        codec.analyse(q, work.coef + i * codec.n_coef(), work.zero_coef + i * n_segments);
    if (codec.has_block_params()) continue;
    codec.unpack(work.key_params, work.unpacked);
    make_query_tables(codec, i, work);
  }
}

// Integer tables of one query. With block parameters work.c holds the block's coefficients already.
void PieceContext::make_query_tables(const Codec& codec, int query, Work& work) const {
  const bool per_query = !codec.has_block_params();
  const size_t n_groups = static_cast<size_t>(codec.layout().n_groups);
  const size_t slot = per_query ? static_cast<size_t>(query) : 0;
  const size_t n_segments = codec.segments().size();
  if (per_query) {
    codec.term_coefficients(work.coef + query * codec.n_coef(), work.unpacked, work.c);
  }
  for (size_t s = 0; s < n_segments; ++s) {
    const Segment& segment = codec.segments()[s];
    const float largest =
        kernels_.make_tables(codec.term_begin().data(), codec.patterns().data(), work.c,
                             segment.group_begin, segment.group_end, work.tables);
    work.units[slot * n_segments + s] = largest / 32767.0f;
    const size_t first = (slot * n_groups + static_cast<size_t>(segment.group_begin)) * 16;
    kernels_.quantise_tables(work.tables, segment.group_end - segment.group_begin,
                             largest > 0.0f ? 32767.0f / largest : 0.0f, work.lo + first,
                             work.hi + first);
  }
}

// Scores of the 64 cells of a packed block for one query; work.unpacked and work.key_params hold
// the block's parameters.
void PieceContext::score_packed(const Codec& codec, const uint8_t* packed, int query,
                                Work& work, float* out) const {
  const size_t n_segments = codec.segments().size();
  const size_t n_groups = static_cast<size_t>(codec.layout().n_groups);
  float constant = work.shared[query];
  size_t slot = static_cast<size_t>(query);
  if (codec.has_block_params()) {
    constant +=
        codec.term_coefficients(work.coef + query * codec.n_coef(), work.unpacked, work.c);
    make_query_tables(codec, query, work);
    slot = 0;
  }
  std::fill_n(out, kBlockTokens, constant);
  for (size_t s = 0; s < n_segments; ++s) {
    const Segment& segment = codec.segments()[s];
    const size_t first = (slot * n_groups + static_cast<size_t>(segment.group_begin)) * 16;
    kernels_.scan(packed + segment.group_begin * kGroupBytes,
                  segment.group_end - segment.group_begin, work.lo + first, work.hi + first,
                  work.sums);
    const float unit = work.units[slot * n_segments + s];
    if (segment.token_params < 0) {
      for (int t = 0; t < kBlockTokens; ++t) out[t] += unit * static_cast<float>(work.sums[t]);
      continue;
    }
    const float* scale = work.key_params + segment.token_params;
    const float* zero = scale + kBlockTokens;
    const float z = work.zero_coef[static_cast<size_t>(query) * n_segments + s];
    for (int t = 0; t < kBlockTokens; ++t) {
      out[t] += scale[t] * (unit * static_cast<float>(work.sums[t])) + zero[t] * z;
    }
  }
}

// Scores of one block for all queries of the tile, [queries] at kPieceTokens apart.
void PieceContext::score_block(const Tile& tile, int block, float* scores, Work& work) const {
  const SideStore& keys = cache_.keys();
  const size_t at = cache_block(tile, block);
  const uint8_t* packed = nullptr;
  const Codec* codec = nullptr;
  if (keys.packed_mask(at) != 0) {
    packed = keys.packed(at, tile.kv_head);
    codec = &keys.codec(tile.kv_head);
    load_params(*codec, packed, work.key_params);
    if (codec->has_block_params()) codec->unpack(work.key_params, work.unpacked);
  }
  for (int i = 0; i < tile.n_queries; ++i) {
    float* out = scores + static_cast<size_t>(i) * kPieceTokens;
    const int row = i / group_;
    const uint64_t visible = visible_row(tile, row)[block];
    if (visible == 0) {
      std::fill_n(out, kBlockTokens, kNegInf);
      continue;
    }
    const uint64_t coded = packed_cells(keys, at, own_stamp(tile, row));
    if ((coded & visible) != 0) {
      score_packed(*codec, packed, i, work, out);
    } else {
      std::fill_n(out, kBlockTokens, 0.0f);
    }
    for_runs(keys.dense_mask(at) & ~coded & visible, [&](int first, int count) {
      kernels_.dense_scores(keys.dense_row(at, tile.kv_head, first), key_stride_, count,
                            work.q + i * key_stride_, out + first);
    });
    for_runs(visible & ~keys.held_mask(at),
             [&](int first, int count) { std::fill_n(out + first, count, 0.0f); });
    adjust_scores(tile, i, block, visible, out);
  }
}

void PieceContext::adjust_scores(const Tile& tile, int query, int block, uint64_t visible,
                                 float* scores) const {
  if (in_.softcap != 0.0f) {
    for (int t = 0; t < kBlockTokens; ++t) scores[t] = in_.softcap * std::tanh(scores[t]);
  }
  if (in_.mask != nullptr) {
    const int first = block * kBlockTokens;
    const int n = std::min(kBlockTokens, in_.n_kv - first);
    const Half* mask = in_.mask + static_cast<size_t>(tile.stream) * in_.mask_stream +
                       static_cast<size_t>(tile.first_row + query / group_) * in_.mask_row + first;
    float bias[kBlockTokens];
    kernels_.halves_to_floats(mask, static_cast<size_t>(n), bias);
    const float slope = slopes_[tile.kv_head * group_ + query % group_];
    for (int t = 0; t < n; ++t) scores[t] += slope * bias[t];
  }
  if (visible == ~uint64_t{0}) return;
  for_runs(~visible, [&](int first, int count) { std::fill_n(scores + first, count, kNegInf); });
}

void PieceContext::weigh_packed(const Codec& codec, const uint8_t* packed, const float* p,
                                float* acc, Work& work) const {
  const ValueTerms& terms = codec.terms();
  const auto segments = codec.segments();
  for (size_t s = 0; s < segments.size(); ++s) {
    const Segment& segment = segments[s];
    const bool token_params = segment.token_params >= 0;
    const float* scale = token_params ? work.value_params + segment.token_params : nullptr;
    const float unit = kernels_.quantise_weights(p, scale, work.w);
    const int n_terms = segment.term_end - segment.term_begin;
    kernels_.value_dots(packed, terms.group.data() + segment.term_begin,
                        terms.table.data() + segment.term_begin * 16, n_terms, work.w, work.dots);
    const int* coord = terms.coord.data() + segment.term_begin;
    const float* term_scale = terms.scale.data() + segment.term_begin;
    for (int i = 0; i < n_terms; ++i) {
      acc[coord[i]] += unit * term_scale[i] * static_cast<float>(work.dots[i]);
    }
    if (!token_params) continue;
    const float zero = kernels_.dot64(p, scale + kBlockTokens);
    const int* order = codec.coord_order().data();
    for (int i = segment.coord_begin; i < segment.coord_end; ++i) acc[order[i]] += zero;
  }
}

// Adds one block's weighted values to every query's accumulators.
void PieceContext::weigh_block(const Tile& tile, int block, const float* weights, float* partial,
                               Work& work) const {
  const SideStore& values = cache_.values();
  const size_t at = cache_block(tile, block);
  const uint8_t* packed = nullptr;
  const Codec* codec = nullptr;
  if (values.packed_mask(at) != 0) {
    packed = values.packed(at, tile.kv_head);
    codec = &values.codec(tile.kv_head);
    load_params(*codec, packed, work.value_params);
  }
  for (int i = 0; i < tile.n_queries; ++i) {
    const int row = i / group_;
    const uint64_t visible = visible_row(tile, row)[block];
    if (visible == 0) continue;
    const float* p = weights + static_cast<size_t>(i) * kPieceTokens;
    float* dense_acc = partial + static_cast<size_t>(i) * query_floats_ + kPartialHeader;
    const uint64_t coded = packed_cells(values, at, own_stamp(tile, row)) & visible;
    for_runs(values.dense_mask(at) & ~coded & visible, [&](int first, int count) {
      kernels_.dense_accumulate(values.dense_row(at, tile.kv_head, first), value_stride_, count,
                                p + first, dense_acc);
    });
    if (coded == 0) continue;
    const float* packed_p = p;
    if (coded != ~uint64_t{0}) {
      std::fill_n(work.p, kBlockTokens, 0.0f);
      for_runs(coded, [&](int first, int count) { std::copy_n(p + first, count, work.p + first); });
      packed_p = work.p;
    }
    weigh_packed(*codec, packed, packed_p, dense_acc + value_stride_, work);
  }
}

bool PieceContext::run_piece(size_t tile_index, size_t piece, float* scratch,
                             float* partial) const {
  const Tile tile = tile_at(tile_index);
  const int first = static_cast<int>(piece) * kPieceBlocks;
  const int n = std::min(kPieceBlocks, n_blocks_ - first);
  uint64_t seen_blocks = 0;
  for (int row = 0; row < tile.n_rows; ++row) {
    const uint64_t* visible = visible_row(tile, row) + first;
    for (int b = 0; b < n; ++b) seen_blocks |= static_cast<uint64_t>(visible[b] != 0) << b;
  }
  if (seen_blocks == 0) return false;

  Work work = work_at(scratch);
  load_queries(tile, work);
  for (int b = 0; b < n; ++b) {
    float* scores = work.scores + b * kBlockTokens;
    if ((seen_blocks >> b & 1) != 0) {
      score_block(tile, first + b, scores, work);
      continue;
    }
    for (int i = 0; i < tile.n_queries; ++i) {
      std::fill_n(scores + static_cast<size_t>(i) * kPieceTokens, kBlockTokens, kNegInf);
    }
  }
  reset(partial);
  for (int i = 0; i < tile.n_queries; ++i) {
    float* scores = work.scores + static_cast<size_t>(i) * kPieceTokens;
    float* header = partial + static_cast<size_t>(i) * query_floats_;
    const float max = kernels_.max_score(scores, n * kBlockTokens);
    header[0] = max;
    if (max == kNegInf) {
      std::fill_n(scores, n * kBlockTokens, 0.0f);
    } else {
      header[1] = kernels_.exp_weights(scores, n * kBlockTokens, max, scores);
    }
  }
  for (int b = 0; b < n; ++b) {
    if ((seen_blocks >> b & 1) == 0) continue;
    weigh_block(tile, first + b, work.scores + b * kBlockTokens, partial, work);
  }
  return true;
}

void PieceContext::reset(float* partial) const {
  std::fill_n(partial, partial_floats(), 0.0f);
  for (int i = 0; i < max_queries_; ++i) partial[static_cast<size_t>(i) * query_floats_] = kNegInf;
}

// Online softmax (Milakov, Gimelshein 2018): both sums are brought to the larger maximum.
void PieceContext::merge(const float* from, float* into) const {
  for (int i = 0; i < max_queries_; ++i) {
    const float* a = from + static_cast<size_t>(i) * query_floats_;
    float* b = into + static_cast<size_t>(i) * query_floats_;
    if (a[0] == kNegInf) continue;
    const float max = std::max(a[0], b[0]);
    const float scale_a = std::exp(a[0] - max);
    const float scale_b = std::exp(b[0] - max);
    b[0] = max;
    for (size_t j = 1; j < query_floats_; ++j) b[j] = b[j] * scale_b + a[j] * scale_a;
  }
}

void PieceContext::finish(size_t tile_index, const float* total) const {
  const Tile tile = tile_at(tile_index);
  const int d = cache_.shape().d_v;
  for (int i = 0; i < tile.n_queries; ++i) {
    const float* query = total + static_cast<size_t>(i) * query_floats_;
    const int head = tile.kv_head * group_ + i % group_;
    const size_t row = static_cast<size_t>(tile.stream * in_.n_rows + tile.first_row + i / group_);
    float* out = in_.out + (row * static_cast<size_t>(in_.n_head) + static_cast<size_t>(head)) *
                               static_cast<size_t>(d);
    const float* dense = query + kPartialHeader;
    std::copy_n(dense, d, out);
    if (!cache_.values().is_dense()) {
      const Codec& codec = cache_.values().codec(tile.kv_head);
      codec.synthesise(dense + value_stride_, out);
    }
    float scale = 1.0f;  // exp(m - m') / l'
    float sum = query[1];
    if (in_.sinks != nullptr) {
      const float sink = in_.sinks[head];
      const float max = std::max(query[0], sink);
      scale = std::exp(query[0] - max);
      sum = sum * scale + std::exp(sink - max);
    }
    scale = sum > 0.0f ? scale / sum : (sum == 0.0f ? 0.0f : sum);
    for (int c = 0; c < d; ++c) out[c] *= scale;
  }
}

}  // namespace headq
