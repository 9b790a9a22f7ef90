#include "attention/attention.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>

#include "attention/piece.h"
#include "core/parallel.h"
#include "headq/error.h"

namespace headq {
std::vector<float> alibi_slopes(int n_head, float max_bias) {
  std::vector<float> slopes(static_cast<size_t>(n_head), 1.0f);
  if (max_bias <= 0.0f) return slopes;
  const int n_pow2 = static_cast<int>(std::bit_floor(static_cast<unsigned>(n_head)));
  const float base = std::pow(2.0f, -max_bias / static_cast<float>(n_pow2));
  const float half_base = std::pow(2.0f, -max_bias / 2.0f / static_cast<float>(n_pow2));
  for (int h = 0; h < n_head; ++h) {
    slopes[static_cast<size_t>(h)] =
        h < n_pow2 ? std::pow(base, static_cast<float>(h + 1))
                   : std::pow(half_base, static_cast<float>(2 * (h - n_pow2) + 1));
  }
  return slopes;
}

namespace {

void check_rows(const LayerCache& cache, const AttentionInputs& in) {
  const size_t n = static_cast<size_t>(in.n_rows) * static_cast<size_t>(in.n_streams);
  if (cache.written().size() != n) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("layer {}: {} query rows, but {} rows were written in this graph",
                            cache.layer(), n, cache.written().size()));
  }
  for (size_t i = 0; i < n; ++i) {
    const int64_t stream = cache.written()[i].cell / cache.n_cells();
    const int64_t wanted = in.first_stream + static_cast<int64_t>(i) / in.n_rows;
    if (stream != wanted) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("layer {}: query row {} is of stream {}, its row was written to {}",
                              cache.layer(), i, wanted, stream));
    }
  }
}

int blocks_seen(int n_kv) { return (n_kv + kBlockTokens - 1) / kBlockTokens; }

}  // namespace

// What rows see: [rows][n_blocks] bits of cells.
struct Attention::Seen {
  const uint64_t* visible = nullptr;
  bool biased = false;  // some visible cell's mask is not 0
  int n_blocks = 0;
};

void Attention::run(LayerCache& cache, const AttentionInputs& in, int n_threads) {
  check_rows(cache, in);
  const int n_blocks = blocks_seen(in.n_kv);
  const size_t n_rows = static_cast<size_t>(in.n_rows) * static_cast<size_t>(in.n_streams);

  visible_.resize(n_rows * static_cast<size_t>(n_blocks));
  is_sink_.assign(n_rows, 0);
  biased_.assign(n_rows, 0);
  parallel_for(n_threads, n_rows, [&](size_t row, int) {
    uint64_t* bits = visible_.data() + row * static_cast<size_t>(n_blocks);
    const size_t stream = row / static_cast<size_t>(in.n_rows);
    int position = -1;  // cells seen, minus one
    bool biased = false;
    for (int b = 0; b < n_blocks; ++b) {
      const int n = std::min(kBlockTokens, in.n_kv - b * kBlockTokens);
      bits[b] = n == kBlockTokens ? ~uint64_t{0} : (uint64_t{1} << n) - 1;
      if (in.mask != nullptr) {
        const Half* mask = in.mask + stream * in.mask_stream +
                           row % static_cast<size_t>(in.n_rows) * in.mask_row + b * kBlockTokens;
        bits[b] = kernels_.visible_bits(mask, n, &biased);
      }
      position += std::popcount(bits[b]);
    }
    is_sink_[row] = position < cache.sinks();
    biased_[row] = biased;
  });
  const bool biased = std::find(biased_.begin(), biased_.end(), 1) != biased_.end();
  cache.prepare(is_sink_, n_threads);
  const Seen seen = {visible_.data(), biased, n_blocks};
  if (cache.wants_paid()) {
    run_until_coded(cache, in, seen, n_threads);
  } else {
    run_rows(cache, in, seen, n_threads);
  }
  cache.finish_read();
}

// Runs stream by stream and in spans of rows that read the same blocks packed, so that when values are
// coded the attention of every row before is known. The result is the same for any batch, to rounding.
void Attention::run_until_coded(LayerCache& cache, const AttentionInputs& in, const Seen& seen,
                                int n_threads) {
  for (int s = 0; s < in.n_streams; ++s) {
    const int stream = in.first_stream + s;
    const size_t of_stream = static_cast<size_t>(s);
    for (int first = 0, end = 0; first < in.n_rows; first = end) {
      const size_t row = of_stream * static_cast<size_t>(in.n_rows) + static_cast<size_t>(first);
      cache.code_paid(stream, cache.written()[row].stamp, n_threads);
      const uint64_t until = cache.next_paid_from(stream);
      for (end = first + 1; end < in.n_rows; ++end) {
        if (cache.written()[row + static_cast<size_t>(end - first)].stamp >= until) break;
      }
      AttentionInputs span = in;
      span.n_rows = end - first;
      span.n_streams = 1;
      span.first_stream = stream;
      span.first_written = row;
      span.q += of_stream * in.q_stream + static_cast<size_t>(first) * in.q_row;
      if (in.mask != nullptr) {
        span.mask += of_stream * in.mask_stream + static_cast<size_t>(first) * in.mask_row;
      }
      span.out += row * static_cast<size_t>(in.n_head) * static_cast<size_t>(cache.shape().d_v);
      run_rows(cache, span, {seen.visible + row * static_cast<size_t>(seen.n_blocks), seen.biased, seen.n_blocks},
               n_threads);
    }
  }
}

// Adds the squared weights of the rows just run to the blocks whose values are still to be coded. Each
// head's sums run in the order of the rows.
void Attention::add_paid(LayerCache& cache, const AttentionInputs& in, const PieceContext& context,
                         int n_threads) {
  const std::vector<int> blocks = cache.waiting_blocks(in.first_stream);
  const size_t n_heads = static_cast<size_t>(cache.shape().n_head_kv);
  parallel_for(n_threads, n_heads, [&](size_t head, int thread) {
    float* scratch = scratch_[static_cast<size_t>(thread)].data();
    for (size_t tile = head; tile < context.n_tiles(); tile += n_heads) {
      for (int block : blocks) {
        if (block * kBlockTokens >= in.n_kv) continue;
        context.add_paid(tile, block, norms_.data(), scratch,
                         cache.paid_to(in.first_stream, block, static_cast<int>(head)));
      }
    }
  });
}

void Attention::run_rows(LayerCache& cache, const AttentionInputs& in, const Seen& seen, int n_threads) {
  if (slopes_.size() != static_cast<size_t>(in.n_head) || slopes_bias_ != in.max_bias) {
    slopes_ = alibi_slopes(in.n_head, in.max_bias);
    slopes_bias_ = in.max_bias;
  }
  queries_.prepare(cache, kernels_, in, PieceContext::scans(cache, in), n_threads);
  const PieceContext context(cache, kernels_, in, queries_, seen.visible, seen.biased, seen.n_blocks,
                             slopes_.data());
  float* norms = nullptr;
  if (cache.wants_paid()) {
    norms_.resize(2 * static_cast<size_t>(in.n_streams * in.n_rows * in.n_head));
    norms = norms_.data();
  }
  const size_t team = static_cast<size_t>(std::max(n_threads, 1));
  if (scratch_.size() < team) scratch_.resize(team);
  for (auto& scratch : scratch_) {
    if (scratch.size() < context.scratch_floats()) scratch.resize(context.scratch_floats());
  }

  // Few tiles (decoding): the pieces of a tile run in parallel. Many (prompts): tiles do, and each
  // merges its pieces as it goes. The order of merging is the same.
  const size_t n_tiles = context.n_tiles();
  const size_t n_pieces = context.n_pieces();
  const size_t partial = context.partial_floats();
  if (n_tiles >= 4 * team) {
    partials_.resize(team * 2 * partial);
    parallel_for(n_threads, n_tiles, [&](size_t tile, int thread) {
      float* total = partials_.data() + static_cast<size_t>(thread) * 2 * partial;
      float* scratch = scratch_[static_cast<size_t>(thread)].data();
      context.reset(total);
      for (size_t piece = 0; piece < n_pieces; ++piece) {
        if (context.run_piece(tile, piece, scratch, total + partial)) {
          context.merge(total + partial, total);
        }
      }
      context.finish(tile, total, norms);
    });
  } else {
    partials_.resize(n_tiles * (n_pieces + 1) * partial);
    ran_.assign(n_tiles * n_pieces, 0);
    parallel_for(n_threads, n_tiles * n_pieces, [&](size_t task, int thread) {
      const size_t tile = task / n_pieces;
      const size_t piece = task % n_pieces;
      float* out = partials_.data() + (tile * (n_pieces + 1) + 1 + piece) * partial;
      ran_[task] = context.run_piece(tile, piece, scratch_[static_cast<size_t>(thread)].data(), out);
    });
    parallel_for(n_threads, n_tiles, [&](size_t tile, int) {
      float* total = partials_.data() + tile * (n_pieces + 1) * partial;
      context.reset(total);
      for (size_t piece = 0; piece < n_pieces; ++piece) {
        if (ran_[tile * n_pieces + piece] != 0) context.merge(total + (1 + piece) * partial, total);
      }
      context.finish(tile, total, norms);
    });
  }
  if (norms != nullptr) add_paid(cache, in, context, n_threads);
}

}  // namespace headq
