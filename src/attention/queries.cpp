#include "attention/queries.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"

namespace headq {

namespace {

// Of the variance of a score's error. It is a mean over tokens and queries: where few tokens hold most
// of it, the share of the others' is several times this, and must stay below 1 %.
constexpr float kTableShare = 0.0005f;

}  // namespace

void make_tables(const Codec& codec, const Kernels& kernels, const float* c, float score_error,
                 float* tables, uint8_t* lo, uint8_t* hi, float* units, int* n_wide) {
  // The sum of n_groups integers is off by n_groups / 12 units squared.
  const float coarse =
      score_error * std::sqrt(12.0f * kTableShare / static_cast<float>(codec.layout().n_groups));
  for (const Segment& segment : codec.segments()) {
    const float largest = kernels.make_tables(codec.term_begin().data(), codec.patterns().data(), c,
                                              segment.group_begin, segment.group_end, tables);
    const float unit = std::max(largest / static_cast<float>(kTableTop), coarse);
    *units++ = unit;
    const size_t first = static_cast<size_t>(segment.group_begin) * 16;
    *n_wide++ = kernels.quantise_tables(tables, segment.group_end - segment.group_begin,
                                        largest > 0.0f ? 1.0f / unit : 0.0f, lo + first, hi + first);
  }
}

int Queries::n_wide(size_t i, size_t n, size_t s) const {
  int largest = 0;
  for (size_t j = i; j < i + n; ++j) largest = std::max(largest, n_wide_[j * sizes_.n_segments + s]);
  return largest;
}

void Queries::prepare(const LayerCache& cache, const Kernels& kernels, const AttentionInputs& in,
                      bool tables, int n_threads) {
  const SideStore& keys = cache.keys();
  n_kv_heads_ = static_cast<size_t>(keys.n_head());
  n_rows_ = static_cast<size_t>(in.n_rows);
  group_ = static_cast<size_t>(in.n_head) / n_kv_heads_;
  stride_ = static_cast<size_t>(keys.row_stride());
  sizes_ = {};
  size_t n_terms = 0, n_unpacked = 0;
  for (int h = 0; h < keys.n_head() && !keys.is_dense(); ++h) {
    const Codec& codec = keys.codec(h);
    sizes_.n_coef = std::max(sizes_.n_coef, static_cast<size_t>(codec.n_coef()));
    sizes_.n_segments = std::max(sizes_.n_segments, codec.segments().size());
    sizes_.n_groups = std::max(sizes_.n_groups, static_cast<size_t>(codec.layout().n_groups));
    n_terms = std::max(n_terms, codec.patterns().size() / 16);
    n_unpacked = std::max(n_unpacked, static_cast<size_t>(codec.n_unpacked()));
  }
  const size_t n = static_cast<size_t>(in.n_streams) * n_rows_ * static_cast<size_t>(in.n_head);
  const auto grow = [](auto& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
  };
  grow(q_, n * stride_);
  grow(coef_, n * sizes_.n_coef);
  grow(zero_coef_, n * sizes_.n_segments);
  grow(shared_, n);
  if (tables) {
    grow(units_, n * sizes_.n_segments);
    grow(n_wide_, n * sizes_.n_segments);
    grow(lo_, n * table_bytes());
    grow(hi_, n * table_bytes());
  }

  const float scale = in.softcap != 0.0f ? in.scale / in.softcap : in.scale;
  const size_t d = static_cast<size_t>(cache.shape().d_k);
  if (work_.size() < static_cast<size_t>(std::max(n_threads, 1))) {
    work_.resize(static_cast<size_t>(std::max(n_threads, 1)));
  }
  parallel_for(n_threads, n / group_, [&](size_t task, int thread) {
    const size_t row = task % n_rows_, kv_head = task / n_rows_ % n_kv_heads_;
    const size_t stream = task / n_rows_ / n_kv_heads_;
    std::vector<float>& work = work_[static_cast<size_t>(thread)];
    grow(work, sizes_.n_groups * 16 + n_terms + n_unpacked);
    for (size_t g = 0; g < group_; ++g) {
      const size_t i = task * group_ + g;
      const float* from = in.q + stream * in.q_stream + row * in.q_row + (kv_head * group_ + g) * in.q_head;
      float* q = q_.data() + i * stride_;
      for (size_t c = 0; c < d; ++c) q[c] = from[c] * scale;
      std::fill(q + d, q + stride_, 0.0f);
      if (keys.packed_bytes() == 0) continue;
      const Codec& codec = keys.codec(static_cast<int>(kv_head));
      float* coef = coef_.data() + i * sizes_.n_coef;
      shared_[i] = codec.analyse(q, coef, zero_coef_.data() + i * sizes_.n_segments);
      if (!tables || codec.has_block_params()) continue;
      float* c = work.data() + sizes_.n_groups * 16;
      float* unpacked = c + n_terms;
      codec.unpack(nullptr, unpacked);
      codec.term_coefficients(coef, unpacked, c);
      make_tables(codec, kernels, c, codec.score_error(coef), work.data(),
                  lo_.data() + i * table_bytes(), hi_.data() + i * table_bytes(),
                  units_.data() + i * sizes_.n_segments, n_wide_.data() + i * sizes_.n_segments);
    }
  });
}

}  // namespace headq
