#include "attention/piece.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace headq {
namespace {

constexpr float kNegInf = -INFINITY;
// Queries of a tile from which a block is decoded for all of them, and the most of a tile.
constexpr int kTileFrom = 16, kTileQueries = 64;

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

// Weights times scales of refined tokens where a quarter has their nibbles (Segment), zeros elsewhere,
// slots [64]. Returns which slots these are.
uint64_t gather_refined(uint64_t refined, uint64_t coded, int quarter, const float* p,
                        const float* scale, float* slots) {
  std::fill_n(slots, kBlockTokens, 0.0f);
  uint64_t used = 0;
  int slot = quarter * kRefinedTokens;
  for (; refined != 0; refined &= refined - 1, ++slot) {
    const int t = std::countr_zero(refined);
    if ((coded >> t & 1) == 0) continue;
    slots[slot] = p[t] * scale[t];
    used |= uint64_t{1} << slot;
  }
  return used;
}

}  // namespace

PieceContext::CodecSizes::CodecSizes(const SideStore& side) {
  const auto raise = [](size_t& size, size_t value) { size = std::max(size, value); };
  for (int head = 0; head < side.n_head() && !side.is_dense(); ++head) {
    const Codec& codec = side.codec(head);
    raise(n_halves, static_cast<size_t>(codec.n_halves()));
    raise(n_params, static_cast<size_t>(codec.layout().n_params));
    raise(n_sums, codec.sums().n());
    raise(n_coords, static_cast<size_t>(codec.n_coords()));
    raise(n_rows, static_cast<size_t>(std::max(codec.n_coords(), codec.n_coef())));
  }
}

// Scratch of one thread.
struct PieceContext::Work {
  float* scores = nullptr;  // [queries][kPieceTokens], then the weights
  BlockView keys[kPieceBlocks], values[kPieceBlocks];  // of the blocks seen

  // Scanning:
  int32_t* sums = nullptr;     // [queries][64]
  float* key_params = nullptr;  // [n_params] of the block
  float* factors = nullptr;     // [n_halves] of linear codecs, then zeros and the integer products
  float* zeros = nullptr;       // [coef_stride]
  int8_t* low = nullptr;        // [queries][n_halves]
  int8_t* high = nullptr;
  float* units = nullptr;       // [queries]
  float* value_params = nullptr;     // [blocks][value n_params]
  uint8_t* w = nullptr;              // [blocks][queries][kWeightBytes]
  float* dots = nullptr;             // [queries][value sums]
  float* masked = nullptr;           // [64]
  const uint8_t** codes = nullptr;   // [blocks] that some query reads packed
  uint64_t* coded = nullptr;         // [blocks][rows] the cells that are
  int* block_of = nullptr;           // [blocks] of the piece

  // Decoding tiles:
  float* y = nullptr;           // coordinates [rows][64] or dense rows
  float* turned = nullptr;      // their transpose
  float* other = nullptr;       // [queries][64]
  Cells* cells = nullptr;       // [rows of the tile]

  size_t total = 0;  // floats

  template <typename T>
  void take(float* base, T*& pointer, size_t n) {
    pointer = reinterpret_cast<T*>(base + total);
    total += padded((n * sizeof(T) + sizeof(float) - 1) / sizeof(float));
  }
};

PieceContext::Work PieceContext::work_at(float* base) const {
  Work work;
  const size_t n = static_cast<size_t>(max_queries_), rows = static_cast<size_t>(tile_rows_);
  const CodecSizes &key = key_sizes_, &value = value_sizes_;
  work.take(base, work.scores, n * kPieceTokens);
  if (scans_) {
    work.take(base, work.sums, n * kBlockTokens);
    work.take(base, work.key_params, key.n_params);
    work.take(base, work.factors, key.n_halves);
    work.take(base, work.zeros, queries_.coef_stride());
    work.take(base, work.low, n * key.n_halves);
    work.take(base, work.high, n * key.n_halves);
    work.take(base, work.units, n);
    work.take(base, work.value_params, kPieceBlocks * value.n_params);
    work.take(base, work.w, kPieceBlocks * n * kWeightBytes);
    work.take(base, work.dots, n * value.n_sums);
    work.take(base, work.masked, kBlockTokens);
    work.take(base, work.codes, kPieceBlocks);
    work.take(base, work.coded, kPieceBlocks * rows);
    work.take(base, work.block_of, kPieceBlocks);
    return work;
  }
  const size_t widest = std::max({padded(key.n_rows), padded(value.n_rows),
                                  static_cast<size_t>(key_stride_), static_cast<size_t>(value_stride_)});
  work.take(base, work.y, widest * kBlockTokens);
  work.take(base, work.turned, widest * kBlockTokens);
  work.take(base, work.other, n * kBlockTokens);
  work.take(base, work.cells, rows);
  return work;
}

size_t PieceContext::scratch_floats() const { return work_at(nullptr).total; }

bool PieceContext::scans(const LayerCache& cache, const AttentionInputs& in) {
  return in.n_rows * (in.n_head / cache.shape().n_head_kv) < kTileFrom;
}

PieceContext::PieceContext(const LayerCache& cache, const Kernels& kernels,
                           const AttentionInputs& in, const Queries& queries, const uint64_t* visible,
                           bool biased, int n_blocks, const float* slopes)
    : cache_(cache),
      kernels_(kernels),
      in_(in),
      queries_(queries),
      visible_(visible),
      biased_(biased),
      n_blocks_(n_blocks),
      slopes_(slopes),
      key_sizes_(cache.keys()),
      value_sizes_(cache.values()),
      group_(in.n_head / cache.shape().n_head_kv),
      scans_(scans(cache, in)) {
  tile_rows_ = std::clamp(kTileQueries / group_, 1, std::max(in.n_rows, 1));
  max_queries_ = tile_rows_ * group_;
  const size_t row_tiles = static_cast<size_t>((in.n_rows + tile_rows_ - 1) / tile_rows_);
  tiles_per_stream_ = row_tiles * static_cast<size_t>(cache.shape().n_head_kv);
  n_tiles_ = tiles_per_stream_ * static_cast<size_t>(in.n_streams);
  n_pieces_ = static_cast<size_t>((n_blocks + kPieceBlocks - 1) / kPieceBlocks);
  key_stride_ = cache.keys().row_stride();
  value_stride_ = cache.values().row_stride();
  query_floats_ = kPartialHeader + static_cast<size_t>(value_stride_) + padded(value_sizes_.n_coords);
}

PieceContext::Tile PieceContext::tile_at(size_t index) const {
  const size_t in_stream = index % tiles_per_stream_;
  const size_t n_kv_heads = static_cast<size_t>(cache_.shape().n_head_kv);
  Tile tile;
  tile.stream = static_cast<int>(index / tiles_per_stream_);
  tile.kv_head = static_cast<int>(in_stream % n_kv_heads);
  tile.first_row = static_cast<int>(in_stream / n_kv_heads) * tile_rows_;
  tile.n_rows = std::min(tile_rows_, in_.n_rows - tile.first_row);
  tile.n_queries = tile.n_rows * group_;
  tile.first_query = queries_.index(tile.stream, tile.kv_head, tile.first_row);
  return tile;
}

PieceContext::BlockView PieceContext::view(const SideStore& side, const Tile& tile, int block) const {
  BlockView out;
  out.side = &side;
  out.kv_head = tile.kv_head;
  out.at = static_cast<size_t>(in_.first_stream + tile.stream) *
               static_cast<size_t>(cache_.blocks_per_stream()) + static_cast<size_t>(block);
  out.packed_mask = side.packed_mask(out.at);
  out.dense_mask = side.dense_mask(out.at);
  if (out.packed_mask == 0) return out;
  out.packed_from = cache_.packed_from(out.at);
  out.codec = &side.codec(tile.kv_head);
  out.packed = side.packed(out.at, tile.kv_head);
  return out;
}

void PieceContext::load_params(const BlockView& view, float* params) const {
  const BlockLayout& layout = view.codec->layout();
  kernels_.halves_to_floats(layout.params(view.packed), static_cast<size_t>(layout.n_params), params);
}

// Query i of a tile is head i % group of row i / group; its dense accumulator, the coded one behind.
float* PieceContext::accumulators(float* partial, int query) const {
  return partial + static_cast<size_t>(query) * query_floats_ + kPartialHeader;
}

// --- Scores

// Sums of integers of a segment for all queries of the tile, to work.sums and work.units.
void PieceContext::scan_segment(const BlockView& keys, const Tile& tile, size_t index, Work& work) const {
  const Segment& segment = keys.codec->segments()[index];
  const uint8_t* codes = keys.packed + segment.group_begin * kGroupBytes;
  const size_t n = static_cast<size_t>(tile.n_queries);
  if (keys.codec->is_linear()) {
    const size_t stride = static_cast<size_t>(segment.half_end() - segment.half_begin);
    for (size_t i = 0; i < n; ++i) {
      work.units[i] = kernels_.quantise_products(queries_.halves(tile.first_query + i) + segment.half_begin,
                                                 work.factors + segment.half_begin, static_cast<int>(stride),
                                                 work.low + i * stride, work.high + i * stride);
    }
    kernels_.scan_products(codes, segment.n_groups(), work.low, work.high, stride, tile.n_queries, work.sums);
    return;
  }
  const size_t group = static_cast<size_t>(segment.group_begin);
  for (size_t i = 0; i < n; ++i) work.units[i] = queries_.units(tile.first_query + i)[index];
  kernels_.scan(codes, segment.n_groups(), queries_.n_wide(tile.first_query, n, index),
                queries_.low(tile.first_query) + group * 16, queries_.high(tile.first_query) + group * 16,
                queries_.factor(tile.first_query) + group, queries_.n_groups(), tile.n_queries, work.sums);
}

// Scores of a packed block by integers, for all queries of the tile.
void PieceContext::scan_block(const BlockView& keys, const Tile& tile, float* scores,
                              Work& work) const {
  const Codec& codec = *keys.codec;
  const size_t n = static_cast<size_t>(tile.n_queries);
  if (codec.layout().n_params > 0) load_params(keys, work.key_params);
  if (codec.is_linear()) {
    codec.block_factors(work.key_params, work.factors, work.zeros);
    std::fill(work.zeros + codec.n_coef(), work.zeros + queries_.coef_stride(), 0.0f);
  }
  for (size_t i = 0; i < n; ++i) {
    const size_t query = tile.first_query + i;
    float constant = queries_.shared(query);
    if (codec.is_linear()) {
      constant += kernels_.dot(queries_.coef(query), work.zeros, static_cast<int>(queries_.coef_stride()));
    }
    std::fill_n(scores + i * kPieceTokens, kBlockTokens, constant);
  }
  for (size_t s = 0; s < codec.segments().size(); ++s) {
    scan_segment(keys, tile, s, work);
    const int params = codec.segments()[s].token_params;
    const float* scale = params >= 0 ? work.key_params + params : nullptr;
    const float* zero = params >= 0 ? scale + kBlockTokens : nullptr;
    for (size_t i = 0; i < n; ++i) {
      kernels_.add_sums(work.sums + i * kBlockTokens, work.units[i], scale, zero,
                        queries_.zero_coef(tile.first_query + i)[s], scores + i * kPieceTokens);
    }
  }
}

// Scores of a packed block from its coordinates, for the queries of some rows of the tile.
void PieceContext::multiply_block(const BlockView& keys, const Tile& tile, int first_row, int n_rows,
                                  float* scores, Work& work) const {
  keys.codec->coordinates(keys.packed, work.y);
  const int first = first_row * group_, n = n_rows * group_;
  const size_t query = tile.first_query + static_cast<size_t>(first);
  float* out = scores + static_cast<size_t>(first) * kPieceTokens;
  kernels_.tile_scores(queries_.coef(query), queries_.coef_stride(), n, work.y, keys.codec->n_coef(), out,
                       kPieceTokens);
  for (int i = 0; i < n; ++i) {
    const float shared = queries_.shared(query + static_cast<size_t>(i));
    float* row = out + static_cast<size_t>(i) * kPieceTokens;
    for (int t = 0; t < kBlockTokens; ++t) row[t] += shared;
  }
}

// f32 rows [64][stride] of the dense cells wanted, zeros elsewhere.
void PieceContext::load_dense_rows(const BlockView& view, uint64_t wanted, int stride,
                                   float* rows) const {
  std::fill_n(rows, kBlockTokens * stride, 0.0f);
  for_runs(wanted, [&](int first, int count) {
    kernels_.halves_to_floats(view.side->dense_row(view.at, view.kv_head, first),
                              static_cast<size_t>(count * stride), rows + first * stride);
  });
}

// Puts the scores of dense cells in their places, for all queries that read any.
void PieceContext::score_dense_tile(const BlockView& keys, const Tile& tile, int block, float* scores,
                                    Work& work) const {
  uint64_t wanted = 0;
  int first_row = tile.n_rows, end_row = 0;
  for (int row = 0; row < tile.n_rows; ++row) {
    work.cells[row] = cells(keys, tile, row, block);
    if (work.cells[row].dense == 0) continue;
    wanted |= work.cells[row].dense;
    first_row = std::min(first_row, row);
    end_row = row + 1;
  }
  if (wanted == 0) return;
  load_dense_rows(keys, wanted, key_stride_, work.y);
  kernels_.transpose(work.y, static_cast<size_t>(key_stride_), kBlockTokens, key_stride_, work.turned,
                     kBlockTokens);
  const int first = first_row * group_;
  kernels_.tile_scores(queries_.query(tile.first_query + static_cast<size_t>(first)), queries_.stride(),
                       (end_row - first_row) * group_, work.turned, key_stride_, work.other, kBlockTokens);
  for (int i = first; i < end_row * group_; ++i) {
    const float* from = work.other + (i - first) * kBlockTokens;
    float* to = scores + static_cast<size_t>(i) * kPieceTokens;
    for_runs(work.cells[i / group_].dense,
             [&](int t, int count) { std::copy_n(from + t, count, to + t); });
  }
}

// Scores of one block for all queries of the tile, [queries] at kPieceTokens apart.
void PieceContext::score_block(const BlockView& keys, const Tile& tile, int block, float* scores,
                               Work& work) const {
  int first_row = tile.n_rows, end_row = 0;  // rows that read the block packed
  for (int row = 0; row < tile.n_rows && keys.codec != nullptr; ++row) {
    if (cells(keys, tile, row, block).coded == 0) continue;
    first_row = std::min(first_row, row);
    end_row = row + 1;
  }
  if (end_row > 0 && scans_) scan_block(keys, tile, scores, work);
  if (end_row > 0 && !scans_) multiply_block(keys, tile, first_row, end_row - first_row, scores, work);
  if (!scans_) score_dense_tile(keys, tile, block, scores, work);
  for (int row = 0; row < tile.n_rows; ++row) {
    const Cells read = cells(keys, tile, row, block);
    const uint64_t absent = read.visible & ~(keys.packed_mask | keys.dense_mask);
    for (int i = row * group_; i < (row + 1) * group_; ++i) {
      float* out = scores + static_cast<size_t>(i) * kPieceTokens;
      if (scans_) {
        for_runs(read.dense, [&](int first, int count) {
          kernels_.dense_scores(keys.side->dense_row(keys.at, tile.kv_head, first), key_stride_, count,
                                queries_.query(tile.first_query + static_cast<size_t>(i)), out + first);
        });
      }
      for_runs(absent, [&](int first, int count) { std::fill_n(out + first, count, 0.0f); });
      adjust_scores(tile, i, block, read.visible, out);
    }
  }
}

void PieceContext::adjust_scores(const Tile& tile, int query, int block, uint64_t visible,
                                 float* scores) const {
  if (visible != ~uint64_t{0}) {
    for_runs(~visible, [&](int first, int count) { std::fill_n(scores + first, count, kNegInf); });
  }
  if (in_.softcap != 0.0f) {
    for_runs(visible, [&](int first, int count) {
      for (int t = first; t < first + count; ++t) scores[t] = in_.softcap * std::tanh(scores[t]);
    });
  }
  if (!biased_) return;
  const int first = block * kBlockTokens;
  const int n = std::min(kBlockTokens, in_.n_kv - first);
  const Half* mask = in_.mask + static_cast<size_t>(tile.stream) * in_.mask_stream +
                     static_cast<size_t>(tile.first_row + query / group_) * in_.mask_row + first;
  float bias[kBlockTokens];
  kernels_.halves_to_floats(mask, static_cast<size_t>(n), bias);
  const float slope = slopes_[tile.kv_head * group_ + query % group_];
  for (int t = 0; t < n; ++t) scores[t] += slope * bias[t];
}

// --- Values

void PieceContext::weigh_dense(const BlockView& values, const Tile& tile, int block,
                               const float* weights, float* partial) const {
  if (values.dense_mask == 0) return;
  for (int row = 0; row < tile.n_rows; ++row) {
    const uint64_t dense = cells(values, tile, row, block).dense;
    for (int i = row * group_; i < (row + 1) * group_; ++i) {
      const float* p = weights + static_cast<size_t>(i) * kPieceTokens;
      for_runs(dense, [&](int first, int count) {
        kernels_.dense_accumulate(values.side->dense_row(values.at, tile.kv_head, first), value_stride_,
                                  count, p + first, accumulators(partial, i));
      });
    }
  }
}

// One segment of the coded values of all blocks in work.codes.
void PieceContext::weigh_segment(const Codec& codec, const Segment& segment, const Tile& tile,
                                 int n_coded, float* partial, Work& work) const {
  const size_t n_params = static_cast<size_t>(codec.layout().n_params);
  const auto scale_of = [&](int b) {
    return segment.token_params < 0
               ? nullptr
               : work.value_params + static_cast<size_t>(b) * n_params + segment.token_params;
  };
  const auto weights_of = [&](int b, int i) {
    return work.scores + static_cast<size_t>(i) * kPieceTokens + work.block_of[b] * kBlockTokens;
  };
  const auto coded_of = [&](int b, int i) { return work.coded[b * tile.n_rows + i / group_]; };
  const size_t first_sum = static_cast<size_t>(segment.sum_begin);
  const int n_sums = segment.sum_end - segment.sum_begin;
  float unit[kTileFrom], zero[kTileFrom];
  for (int i = 0; i < tile.n_queries; ++i) {
    float largest = 1.0f;  // weights are at most 1, and so precise enough where they are less
    zero[i] = 0.0f;
    if (segment.token_params >= 0) {
      largest = 0.0f;
      for (int b = 0; b < n_coded; ++b) {
        const float* scale = scale_of(b);
        const float* p = weights_of(b, i);
        const uint64_t coded = coded_of(b, i);
        if (segment.quarter >= 0) {
          const uint64_t used = gather_refined(codec.refined(work.codes[b]), coded, segment.quarter, p,
                                               scale, work.masked);
          largest = std::max(largest, kernels_.max_weight(work.masked, nullptr, used));
          continue;
        }
        largest = std::max(largest, kernels_.max_weight(p, scale, coded));
        if (coded == 0) continue;
        if (coded != ~uint64_t{0}) {
          for (int t = 0; t < kBlockTokens; ++t) work.masked[t] = (coded >> t & 1) != 0 ? p[t] : 0.0f;
          p = work.masked;
        }
        zero[i] += kernels_.dot(p, scale + kBlockTokens, kBlockTokens);
      }
    }
    unit[i] = largest / static_cast<float>(kWeightTop);
    const float inv_unit = largest > 0.0f ? static_cast<float>(kWeightTop) / largest : 0.0f;
    for (int b = 0; b < n_coded; ++b) {
      if (segment.quarter >= 0) {
        const uint64_t used = gather_refined(codec.refined(work.codes[b]), coded_of(b, i),
                                             segment.quarter, weights_of(b, i), scale_of(b), work.masked);
        kernels_.quantise_weights(work.masked, nullptr, used, inv_unit,
                                  work.w + (b * tile.n_queries + i) * kWeightBytes);
        continue;
      }
      kernels_.quantise_weights(weights_of(b, i), scale_of(b), coded_of(b, i), inv_unit,
                                work.w + (b * tile.n_queries + i) * kWeightBytes);
    }
  }
  const ValueSums& sums = codec.sums();
  kernels_.value_dots(work.codes, n_coded, sums.group.data() + first_sum * 2,
                      sums.table.data() + first_sum * 32, n_sums, work.w, tile.n_queries, work.dots);
  const int* coord = sums.coord.data() + first_sum;
  const float* sum_scale = sums.scale.data() + first_sum;
  for (int i = 0; i < tile.n_queries; ++i) {
    float* acc = accumulators(partial, i) + value_stride_;
    const float* dots = work.dots + i * n_sums;
    for (int j = 0; j < n_sums; ++j) acc[coord[j]] += unit[i] * sum_scale[j] * dots[j];
    if (segment.token_params < 0) continue;
    const int* order = codec.coord_order().data();
    for (int c = segment.coord_begin; c < segment.coord_end; ++c) acc[order[c]] += zero[i];
  }
}

// Adds the weighted values of the piece's packed blocks.
void PieceContext::weigh_codes(const Tile& tile, int first, uint64_t seen_blocks, float* partial,
                               Work& work) const {
  int n_coded = 0;
  const Codec* codec = nullptr;
  for (uint64_t rest = seen_blocks; rest != 0; rest &= rest - 1) {
    const int b = std::countr_zero(rest);
    const BlockView& values = work.values[b];
    if (values.codec == nullptr) continue;
    uint64_t any = 0;
    for (int row = 0; row < tile.n_rows; ++row) {
      const uint64_t coded = cells(values, tile, row, first + b).coded;
      work.coded[n_coded * tile.n_rows + row] = coded;
      any |= coded;
    }
    if (any == 0) continue;
    codec = values.codec;
    const size_t n_params = static_cast<size_t>(codec->layout().n_params);
    if (n_params > 0) load_params(values, work.value_params + static_cast<size_t>(n_coded) * n_params);
    work.codes[n_coded] = values.packed;
    work.block_of[n_coded] = b;
    ++n_coded;
  }
  if (n_coded == 0) return;
  for (const Segment& segment : codec->segments()) {
    weigh_segment(*codec, segment, tile, n_coded, partial, work);
  }
}

// acc += p . rows [64][stride] for the rows of the tile that have any such part, by the weights of
// that part alone.
void PieceContext::accumulate_tile(const Tile& tile, const Cells* cells, uint64_t Cells::*part,
                                   const float* weights, const float* rows, int stride, float* acc,
                                   Work& work) const {
  int first_row = tile.n_rows, end_row = 0;
  bool mixed = false;
  for (int row = 0; row < tile.n_rows; ++row) {
    if (cells[row].*part == 0) continue;
    first_row = std::min(first_row, row);
    end_row = row + 1;
    mixed = mixed || cells[row].*part != cells[row].visible;
  }
  for (int row = first_row; row < end_row; ++row) mixed = mixed || cells[row].*part == 0;
  const int first = first_row * group_, n = (end_row - first_row) * group_;
  const float* p = weights + static_cast<size_t>(first) * kPieceTokens;
  float* to = acc + static_cast<size_t>(first) * query_floats_;
  if (!mixed) {
    kernels_.tile_accumulate(p, kPieceTokens, n, rows, stride, to, query_floats_);
    return;
  }
  std::fill_n(work.other, n * kBlockTokens, 0.0f);
  for (int i = 0; i < n; ++i) {
    for_runs(cells[first_row + i / group_].*part, [&](int t, int count) {
      std::copy_n(p + static_cast<size_t>(i) * kPieceTokens + t, count, work.other + i * kBlockTokens + t);
    });
  }
  kernels_.tile_accumulate(work.other, kBlockTokens, n, rows, stride, to, query_floats_);
}

void PieceContext::weigh_block_tile(const BlockView& values, const Tile& tile, int block,
                                    const float* weights, float* partial, Work& work) const {
  uint64_t coded = 0, dense = 0;
  for (int row = 0; row < tile.n_rows; ++row) {
    work.cells[row] = cells(values, tile, row, block);
    coded |= work.cells[row].coded;
    dense |= work.cells[row].dense;
  }
  float* acc = accumulators(partial, 0);
  if (coded != 0) {
    const size_t n = static_cast<size_t>(values.codec->n_coords()), stride = padded(n);
    values.codec->coordinates(values.packed, work.y);
    std::fill_n(work.y + n * kBlockTokens, (stride - n) * kBlockTokens, 0.0f);
    kernels_.transpose(work.y, kBlockTokens, static_cast<int>(stride), kBlockTokens, work.turned, stride);
    accumulate_tile(tile, work.cells, &Cells::coded, weights, work.turned, static_cast<int>(stride),
                    acc + value_stride_, work);
  }
  if (dense == 0) return;
  load_dense_rows(values, dense, value_stride_, work.y);
  accumulate_tile(tile, work.cells, &Cells::dense, weights, work.y, value_stride_, acc, work);
}

void PieceContext::weigh_piece(const Tile& tile, int first, uint64_t seen_blocks, float* partial,
                               Work& work) const {
  for (uint64_t rest = seen_blocks; rest != 0; rest &= rest - 1) {
    const int b = std::countr_zero(rest);
    const float* weights = work.scores + b * kBlockTokens;
    if (scans_) {
      weigh_dense(work.values[b], tile, first + b, weights, partial);
    } else {
      weigh_block_tile(work.values[b], tile, first + b, weights, partial, work);
    }
  }
  if (scans_) weigh_codes(tile, first, seen_blocks, partial, work);
}

void PieceContext::prefetch(const BlockView& view) {
  constexpr size_t kCacheLine = 64;
  if (view.codec == nullptr) return;
  const size_t n = view.side->packed_stride(view.kv_head);
  for (size_t i = 0; i < n; i += kCacheLine) __builtin_prefetch(view.packed + i);
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
  for (uint64_t rest = seen_blocks; rest != 0; rest &= rest - 1) {
    const int b = std::countr_zero(rest);
    work.keys[b] = view(cache_.keys(), tile, first + b);
    work.values[b] = view(cache_.values(), tile, first + b);
  }
  for (int b = 0; b < n; ++b) {
    float* scores = work.scores + b * kBlockTokens;
    if ((seen_blocks >> b & 1) != 0) {
      if (scans_) prefetch(work.values[b]);
      score_block(work.keys[b], tile, first + b, scores, work);
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
  weigh_piece(tile, first, seen_blocks, partial, work);
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

void PieceContext::add_paid(size_t tile_index, int block, const float* norms, float* scratch,
                            float* paid) const {
  const Tile tile = tile_at(tile_index);
  uint64_t visible = 0;
  for (int row = 0; row < tile.n_rows; ++row) visible |= visible_row(tile, row)[block];
  if (visible == 0) return;
  Work work = work_at(scratch);
  score_block(view(cache_.keys(), tile, block), tile, block, work.scores, work);
  for (int i = 0; i < tile.n_queries; ++i) {
    float* p = work.scores + static_cast<size_t>(i) * kPieceTokens;
    const float* norm = norms + (tile.first_query + static_cast<size_t>(i)) * 2;
    if (norm[1] == 0.0f) continue;
    kernels_.exp_weights(p, kBlockTokens, norm[0], p);
    for (int t = 0; t < kBlockTokens; ++t) paid[t] += p[t] * norm[1] * (p[t] * norm[1]);
  }
}

void PieceContext::finish(size_t tile_index, const float* total, float* norms) const {
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
    if (cache_.values().packed_bytes() > 0) {
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
    if (norms == nullptr) continue;
    float* norm = norms + (tile.first_query + static_cast<size_t>(i)) * 2;
    norm[0] = query[0];
    norm[1] = scale;
  }
}

}  // namespace headq
