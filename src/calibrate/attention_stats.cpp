#include "calibrate/attention_stats.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "core/clones.h"

namespace headq {
namespace {

constexpr int kRows = 4;  // queries at a time, which share the loads of the keys
constexpr int kStride = 2 * kRows;  // of the queries looked at: every other four
constexpr int kLanes = 16;

typedef float Lanes __attribute__((vector_size(kLanes * sizeof(float))));

// s[r][j] = q[r] . key j for kRows queries [kRows][d] and j < n (a multiple of 16).
HEADQ_CLONES void scores(const float* q, int d, const float* columns, size_t n_padded, int n,
                         float* s) {
  for (int j = 0; j < n; j += kLanes) {
    Lanes sum[kRows] = {};
    for (int c = 0; c < d; ++c) {
      Lanes key;
      std::memcpy(&key, columns + static_cast<size_t>(c) * n_padded + j, sizeof key);
      for (int r = 0; r < kRows; ++r) sum[r] += q[r * d + c] * key;
    }
    for (int r = 0; r < kRows; ++r) {
      std::memcpy(s + static_cast<size_t>(r) * n_padded + j, &sum[r], sizeof sum[r]);
    }
  }
}

// s = exp(s - max) with relative error below 2^-20; 0 below exp(-87).
HEADQ_CLONES void exponentials(float* s, int n, float max) {
  for (int j = 0; j < n; ++j) {
    const float x = s[j] - max;
    const float clamped = x < -87.0f ? -87.0f : x;
    const int32_t power = static_cast<int32_t>(clamped * 1.44269504f - 0.5f);
    const float r = clamped - static_cast<float>(power) * 0.693147181f;
    float e = 1.0f / 720.0f;
    e = e * r + 1.0f / 120.0f;
    e = e * r + 1.0f / 24.0f;
    e = e * r + 1.0f / 6.0f;
    e = e * r + 0.5f;
    e = e * r + 1.0f;
    e = e * r + 1.0f;
    const float two_to_power = std::bit_cast<float>((power + 127) << 23);
    s[j] = x < -87.0f ? 0.0f : e * two_to_power;
  }
}

// Adds p (1 - p) and p^2 of p = s * unit.
HEADQ_CLONES void add_weights(const float* s, int n, float unit, float* key, float* value) {
  for (int j = 0; j < n; ++j) {
    const float p = s[j] * unit;
    const float square = p * p;
    key[j] += p - square;
    value[j] += square;
  }
}

struct Sums {
  double first = 0.0, second = 0.0;
};

// Sums of s and s^2.
Sums sums(const float* s, int n) {
  double first[kLanes] = {}, second[kLanes] = {};
  for (int j = 0; j < n; ++j) {
    first[j % kLanes] += s[j];
    second[j % kLanes] += static_cast<double>(s[j]) * s[j];
  }
  Sums out;
  for (int l = 0; l < kLanes; ++l) {
    out.first += first[l];
    out.second += second[l];
  }
  return out;
}

// Scale, softcap and mask of one query's raw scores. Returns the largest, -inf when it sees nothing.
float logits(const HeadAttention& head, int row, int n, float* s) {
  const float* mask = head.mask.empty() ? nullptr : head.mask.data() + row * head.n_rows;
  float max = -INFINITY;
  for (int j = 0; j < n; ++j) {
    float x = s[j] * head.scale;
    if (head.softcap != 0.0f) x = head.softcap * std::tanh(x / head.softcap);
    if (mask != nullptr) x = mask[j] == -INFINITY ? -INFINITY : x + head.slope * mask[j];
    s[j] = x;
    max = std::max(max, x);
  }
  return max;
}

// Rows that query `row` may see lie before this one.
int visible_end(const HeadAttention& head, int row) {
  if (head.mask.empty()) return row + 1;
  int n = head.n_rows;
  const float* mask = head.mask.data() + row * head.n_rows;
  while (n > 0 && mask[n - 1] == -INFINITY) --n;
  return n;
}

}  // namespace

AttentionStats::AttentionStats(const HeadAttention& head, int sinks, int lag)
    : query_fisher(static_cast<size_t>(head.n_rows), 0.0f),
      key_weight(static_cast<size_t>(head.n_rows), 0.0f),
      value_weight(static_cast<size_t>(head.n_rows), 0.0f) {
  std::vector<float> q(static_cast<size_t>(kRows * head.d));
  std::vector<float> s(kRows * head.n_padded);
  for (int first = sinks + lag; first < head.n_rows; first += kStride) {
    const int n_queries = std::min(kRows, head.n_rows - first);
    int most = 0;
    for (int r = 0; r < n_queries; ++r) {
      std::copy_n(head.q + static_cast<size_t>(first + r) * head.q_stride, head.d,
                  q.data() + r * head.d);
      most = std::max(most, visible_end(head, first + r));
    }
    scores(q.data(), head.d, head.k_columns, head.n_padded, (most + kLanes - 1) / kLanes * kLanes,
           s.data());
    for (int r = 0; r < n_queries; ++r) {
      const size_t i = static_cast<size_t>(first + r);
      float* row = s.data() + static_cast<size_t>(r) * head.n_padded;
      const int n = visible_end(head, first + r);
      const float max = logits(head, first + r, n, row);
      if (max == -INFINITY) continue;
      exponentials(row, n, max);
      const double unit = 1.0 / sums(row, n).first;
      const int n_packed = std::min(n, first + r - lag + 1) - sinks;
      if (n_packed <= 0) continue;
      const Sums packed = sums(row + sinks, n_packed);
      query_fisher[i] = static_cast<float>(packed.first * unit - packed.second * unit * unit);
      add_weights(row + sinks, n_packed, static_cast<float>(unit), key_weight.data() + sinks,
                  value_weight.data() + sinks);
    }
  }
}

}  // namespace headq
