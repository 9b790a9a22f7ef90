#include "attention/queries.h"

#include <algorithm>
#include <cmath>

#include "core/parallel.h"

namespace headq {

namespace {

// How many groups have to be wide so that the integers of all are off by at most `variance`, and what an
// integer is then worth. One that is worth u is off by u^2 / 12; those of a narrow group are worth at most
// largest / kNarrowTop + unit.
int split_groups(const float* largest, int n_groups, float variance, float* unit) {
  const float finest = *std::max_element(largest, largest + n_groups) / static_cast<float>(kTableTop);
  float top = 0.0f, sum = 0.0f, sum2 = 0.0f;
  *unit = finest;
  int n_wide = n_groups;
  for (; n_wide > 0; --n_wide) {
    const float worth = largest[n_wide - 1] / kNarrowTop;
    top = std::max(top, worth);
    sum += worth;
    sum2 += worth * worth;
    const float u = std::max(top / kMostFactor, finest);
    const float off = (sum2 + 2.0f * u * sum + u * u * static_cast<float>(n_groups)) / 12.0f;
    if (!(off <= variance)) break;
    *unit = u;
  }
  return n_wide;
}

}  // namespace

void make_tables(const Codec& codec, const Kernels& kernels, const float* c, float score_error, float* work,
                 const QueryTables& out) {
  const float variance = kTableShare * score_error * score_error / static_cast<float>(codec.layout().n_groups);
  for (size_t s = 0; s < codec.segments().size(); ++s) {
    const Segment& segment = codec.segments()[s];
    const int n = segment.group_end - segment.group_begin;
    float* largest = work + n * 16;
    float* inv_units = largest + n;
    kernels.make_tables(codec.term_begin().data(), codec.patterns().data(), c, segment.group_begin,
                        segment.group_end, work, largest);
    float unit;
    const int n_wide = split_groups(largest, n, variance * static_cast<float>(n), &unit);
    const float inv_unit = unit > 0.0f ? 1.0f / unit : 0.0f;
    uint8_t* factor = out.factor + segment.group_begin;
    for (int g = 0; g < n; ++g) {
      const float needed = g < n_wide ? 1.0f : std::ceil(largest[g] / kNarrowTop * inv_unit);
      factor[g] = static_cast<uint8_t>(std::clamp(needed, 1.0f, static_cast<float>(kMostFactor)));
      inv_units[g] = inv_unit / static_cast<float>(factor[g]);
    }
    const size_t first = static_cast<size_t>(segment.group_begin) * 16;
    kernels.quantise_tables(work, n, n_wide, inv_units, out.low + first, out.high + first);
    out.units[s] = unit;
    out.n_wide[s] = n_wide;
  }
}

int Queries::n_wide(size_t i, size_t n, size_t s) const {
  int largest = 0;
  for (size_t j = i; j < i + n; ++j) largest = std::max(largest, n_wide_[j * sizes_.n_segments + s]);
  return largest;
}

void Queries::prepare(const LayerCache& cache, const Kernels& kernels, const AttentionInputs& in,
                      bool scans, int n_threads) {
  const SideStore& keys = cache.keys();
  n_kv_heads_ = static_cast<size_t>(keys.n_head());
  n_rows_ = static_cast<size_t>(in.n_rows);
  group_ = static_cast<size_t>(in.n_head) / n_kv_heads_;
  stride_ = static_cast<size_t>(keys.row_stride());
  sizes_ = {};
  size_t n_terms = 0;
  for (int h = 0; h < keys.n_head() && !keys.is_dense(); ++h) {
    const Codec& codec = keys.codec(h);
    sizes_.n_coef = std::max(sizes_.n_coef, (static_cast<size_t>(codec.n_coef()) + 15) / 16 * 16);
    sizes_.n_segments = std::max(sizes_.n_segments, codec.segments().size());
    sizes_.n_groups = std::max(sizes_.n_groups, static_cast<size_t>(codec.layout().n_groups));
    n_terms = std::max(n_terms, codec.patterns().size() / 16);
    sizes_.n_halves = std::max(sizes_.n_halves, static_cast<size_t>(codec.n_halves()));
  }
  const size_t n = static_cast<size_t>(in.n_streams) * n_rows_ * static_cast<size_t>(in.n_head);
  const auto grow = [](auto& buffer, size_t size) {
    if (buffer.size() < size) buffer.resize(size);
  };
  grow(q_, n * stride_);
  grow(coef_, n * sizes_.n_coef);
  grow(zero_coef_, n * sizes_.n_segments);
  grow(shared_, n);
  if (scans) {
    grow(halves_, n * sizes_.n_halves);
    grow(units_, n * sizes_.n_segments);
    grow(n_wide_, n * sizes_.n_segments);
    grow(low_, n * n_groups() * 16);
    grow(high_, n * n_groups() * 16);
    grow(factor_, n * n_groups());
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
    grow(work, table_work_floats(n_groups()) + n_terms);
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
      std::fill(coef + codec.n_coef(), coef + sizes_.n_coef, 0.0f);
      if (!scans) continue;
      if (codec.is_linear()) {
        codec.spread(coef, halves_.data() + i * sizes_.n_halves);
        continue;
      }
      float* c = work.data() + table_work_floats(n_groups());
      codec.term_coefficients(coef, c);
      make_tables(codec, kernels, c, codec.score_error(coef), work.data(),
                  {.low = low_.data() + i * n_groups() * 16,
                   .high = high_.data() + i * n_groups() * 16,
                   .factor = factor_.data() + i * n_groups(),
                   .units = units_.data() + i * sizes_.n_segments,
                   .n_wide = n_wide_.data() + i * sizes_.n_segments});
    }
  });
}

}  // namespace headq
