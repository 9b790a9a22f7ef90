#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "attention/inputs.h"
#include "attention/kernels.h"
#include "cache/layer_cache.h"

namespace headq {

// What keys are read with, made once for an attention op: every query times the logit scale, its
// analysis by the codec of its KV head where keys are packed, and its integer tables or its halves.
//
// Queries are numbered by stream, KV head, row and head of the group, so that those of a tile are
// side by side.
class Queries {
 public:
  // scans: make what a scan needs, integer tables or halves.
  void prepare(const LayerCache& cache, const Kernels& kernels, const AttentionInputs& in, bool scans,
               int n_threads);

  size_t index(int stream, int kv_head, int row) const {
    return ((static_cast<size_t>(stream) * n_kv_heads_ + static_cast<size_t>(kv_head)) * n_rows_ +
            static_cast<size_t>(row)) * group_;
  }

  const float* query(size_t i) const { return q_.data() + i * stride_; }
  size_t stride() const { return stride_; }  // floats from one query to the next, zeros behind d_k
  const float* coef(size_t i) const { return coef_.data() + i * sizes_.n_coef; }
  size_t coef_stride() const { return sizes_.n_coef; }  // a multiple of 16, zeros behind n_coef()
  const float* zero_coef(size_t i) const { return zero_coef_.data() + i * sizes_.n_segments; }
  float shared(size_t i) const { return shared_[i]; }
  const float* halves(size_t i) const { return halves_.data() + i * sizes_.n_halves; }  // linear codecs
  size_t n_groups() const { return sizes_.n_groups; }  // of a query's tables, the largest over heads
  const int8_t* low(size_t i) const { return low_.data() + i * n_groups() * 16; }
  const int8_t* high(size_t i) const { return high_.data() + i * n_groups() * 16; }
  const uint8_t* factor(size_t i) const { return factor_.data() + i * n_groups(); }
  const float* units(size_t i) const { return units_.data() + i * sizes_.n_segments; }
  // Wide groups of segment s for n queries from query i on.
  int n_wide(size_t i, size_t n, size_t s) const;

 private:
  struct Sizes {
    size_t n_coef = 0, n_segments = 0, n_groups = 0, n_halves = 0;
  };

  size_t n_kv_heads_ = 0, n_rows_ = 0, group_ = 0, stride_ = 0;
  Sizes sizes_;  // the largest over the KV heads
  std::vector<float> q_, coef_, zero_coef_, shared_, halves_, units_;
  std::vector<int> n_wide_;
  std::vector<int8_t> low_, high_;
  std::vector<uint8_t> factor_;
  std::vector<std::vector<float>> work_;  // by thread
};

// What narrow tables may add to the variance of a score's error: a mean over tokens and queries, well below
// the 1 % that all integers together may add.
inline constexpr float kTableShare = 0.002f;

// Integer tables of one query as Kernels::scan reads them, what an integer of each segment is worth and
// how many of its groups are wide.
struct QueryTables {
  int8_t* low;      // [n_groups][16]
  int8_t* high;     // [n_groups][16]
  uint8_t* factor;  // [n_groups]
  float* units;     // [segments]
  int* n_wide;      // [segments]
};

// Makes them from the coefficients c of a codec's terms. Groups are narrow where the codec's own error of
// the scores (Codec::score_error) allows. work: table_work_floats(n_groups).
void make_tables(const Codec& codec, const Kernels& kernels, const float* c, float score_error, float* work,
                 const QueryTables& out);
inline size_t table_work_floats(size_t n_groups) { return n_groups * (16 + 2); }

}  // namespace headq
