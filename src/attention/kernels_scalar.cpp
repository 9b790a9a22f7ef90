#include <cmath>
#include <cstring>

#include "attention/kernels.h"
#include "core/half.h"

namespace headq {
namespace {

constexpr int kLanes = 16;

// The order in which every level adds its lanes.
float lane_sum(const float* lane) {
  float s[kLanes];
  std::memcpy(s, lane, sizeof(s));
  for (int width = kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) s[i] += s[i + width];
  }
  return s[0];
}

int nibble(const uint8_t* codes, int group, int t) {
  return (codes[group * 32 + (t & 31)] >> (t < 32 ? 0 : 4)) & 15;
}

void halves_to_floats(const uint16_t* in, size_t n, float* out) {
  for (size_t i = 0; i < n; ++i) out[i] = half_to_float(in[i]);
}

uint64_t visible_bits(const uint16_t* mask, int n, bool* biased) {
  uint64_t bits = 0;
  for (int t = 0; t < n; ++t) {
    if (mask[t] == 0xfc00u) continue;
    bits |= uint64_t{1} << t;
    if ((mask[t] & 0x7fffu) != 0) *biased = true;
  }
  return bits;
}

void make_tables(const int* term_begin, const float* patterns, const float* c, int group_begin,
                 int group_end, float* tables, float* largest) {
  for (int g = group_begin; g < group_end; ++g, tables += 16, ++largest) {
    for (int n = 0; n < 16; ++n) tables[n] = 0.0f;
    for (int i = term_begin[g]; i < term_begin[g + 1]; ++i) {
      for (int n = 0; n < 16; ++n) tables[n] += c[i] * patterns[i * 16 + n];
    }
    *largest = 0.0f;
    for (int n = 0; n < 16; ++n) {
      const float magnitude = std::fabs(tables[n]);
      *largest = magnitude > *largest ? magnitude : *largest;
    }
  }
}

void quantise_tables(const float* tables, int n_groups, int n_wide, const float* inv_unit, int8_t* low,
                     int8_t* high) {
  for (int i = 0; i < n_groups * 16; ++i) {
    const float t = std::nearbyintf(tables[i] * inv_unit[i / 16]);
    const float h = i / 16 < n_wide ? std::nearbyintf(t * (1.0f / kHighFactor)) : 0.0f;
    high[i] = static_cast<int8_t>(h);
    low[i] = static_cast<int8_t>(t - kHighFactor * h);
  }
}

void scan(const uint8_t* codes, int n_groups, int n_wide, const int8_t* low, const int8_t* high,
          const uint8_t* factor, size_t stride, int n, int32_t* sums) {
  for (int i = 0; i < n; ++i, low += stride * 16, high += stride * 16, factor += stride, sums += 64) {
    for (int t = 0; t < 64; ++t) sums[t] = 0;
    for (int g = 0; g < n_groups; ++g) {
      for (int t = 0; t < 64; ++t) {
        const int entry = g * 16 + nibble(codes, g, t);
        sums[t] += factor[g] * low[entry];
        if (g < n_wide) sums[t] += kHighFactor * high[entry];
      }
    }
  }
}

float quantise_products(const float* halves, const float* factors, int n, int8_t* low, int8_t* high) {
  float largest = 0.0f;
  for (int i = 0; i < n; ++i) {
    const float magnitude = std::fabs(halves[i] * factors[i]);
    largest = magnitude > largest ? magnitude : largest;
  }
  const float inv_unit = largest > 0.0f ? static_cast<float>(kProductTop) / largest : 0.0f;
  for (int i = 0; i < n; ++i) {
    const int c = static_cast<int>(std::nearbyintf(halves[i] * factors[i] * inv_unit));
    low[i] = static_cast<int8_t>(c);
    high[i] = static_cast<int8_t>((c - low[i]) >> 8);
  }
  return largest / static_cast<float>(kProductTop);
}

void scan_products(const uint8_t* codes, int n_groups, const int8_t* low, const int8_t* high, size_t stride,
                   int n, int32_t* sums) {
  for (int i = 0; i < n; ++i, low += stride, high += stride, sums += 64) {
    for (int t = 0; t < 64; ++t) sums[t] = 0;
    for (int g = 0; g < n_groups; ++g) {
      const int a = g / 4 * 8 + g % 4, b = a + 4;
      for (int t = 0; t < 64; ++t) {
        const int n_t = nibble(codes, g, t);
        sums[t] += (low[a] + 256 * high[a]) * (n_t & 3) + (low[b] + 256 * high[b]) * (n_t >> 2);
      }
    }
  }
}

void add_sums(const int32_t* sums, float unit, const float* scale, const float* zero, float z,
              float* out) {
  for (int t = 0; t < 64; ++t) {
    const float sum = unit * static_cast<float>(sums[t]);
    out[t] += scale == nullptr ? sum : scale[t] * sum + zero[t] * z;
  }
}

float weight(const float* p, const float* scale, uint64_t mask, int t) {
  if ((mask >> t & 1) == 0) return 0.0f;
  return scale != nullptr ? p[t] * scale[t] : p[t];
}

float max_weight(const float* p, const float* scale, uint64_t mask) {
  float largest = 0.0f;
  for (int t = 0; t < 64; ++t) {
    const float x = weight(p, scale, mask, t);
    largest = x > largest ? x : largest;
  }
  return largest;
}

void quantise_weights(const float* p, const float* scale, uint64_t mask, float inv_unit, uint8_t* w) {
  int16_t integers[64];
  for (int t = 0; t < 64; ++t) {
    integers[t] = static_cast<int16_t>(std::nearbyintf(weight(p, scale, mask, t) * inv_unit));
  }
  std::memcpy(w, integers, sizeof(integers));
}

void value_dots(const uint8_t* const* codes, int n_blocks, const int* group, const int8_t* tables,
                int n_sums, const uint8_t* w, int n_queries, float* out) {
  for (int q = 0; q < n_queries; ++q) {
    for (int i = 0; i < n_sums; ++i) {
      const int first = group[2 * i], second = group[2 * i + 1];
      const int8_t* table = tables + i * 32;
      int64_t sum = 0;
      for (int b = 0; b < n_blocks; ++b) {
        int16_t weights[64];
        std::memcpy(weights, w + (b * n_queries + q) * kWeightBytes, sizeof(weights));
        for (int t = 0; t < 64; ++t) {
          int x = table[nibble(codes[b], first, t)];
          if (second >= 0) x += table[16 + nibble(codes[b], second, t)];
          sum += weights[t] * x;
        }
      }
      out[q * n_sums + i] = static_cast<float>(sum);
    }
  }
}

float dot(const float* a, const float* b, int n) {
  float lane[kLanes] = {};
  for (int i = 0; i < n; ++i) lane[i % kLanes] += a[i] * b[i];
  return lane_sum(lane);
}

void dense_scores(const uint16_t* rows, int stride, int n, const float* q, float* out) {
  for (int t = 0; t < n; ++t) {
    float lane[kLanes] = {};
    const uint16_t* row = rows + static_cast<ptrdiff_t>(t) * stride;
    for (int c = 0; c < stride; ++c) lane[c % kLanes] += q[c] * half_to_float(row[c]);
    out[t] = lane_sum(lane);
  }
}

void dense_accumulate(const uint16_t* rows, int stride, int n, const float* w, float* acc) {
  for (int t = 0; t < n; ++t) {
    if (w[t] == 0.0f) continue;
    const uint16_t* row = rows + static_cast<ptrdiff_t>(t) * stride;
    for (int c = 0; c < stride; ++c) acc[c] += w[t] * half_to_float(row[c]);
  }
}

float max_score(const float* scores, int n) {
  float largest = -INFINITY;
  for (int i = 0; i < n; ++i) largest = scores[i] > largest ? scores[i] : largest;
  return largest;
}

float exp_of(float x) {
  if (x < kExpLowest) return 0.0f;
  const float n = std::nearbyintf(x * kLog2e);
  float r = std::fma(-n, kLn2Hi, x);
  r = std::fma(-n, kLn2Lo, r);
  float y = kExpTaylor[0];
  for (int i = 1; i < 5; ++i) y = std::fma(y, r, kExpTaylor[i]);
  y = std::fma(y, r, 1.0f);
  y = std::fma(y, r, 1.0f);
  const int32_t exponent = (static_cast<int32_t>(n) + 127) << 23;
  float power;
  std::memcpy(&power, &exponent, sizeof(power));
  return y * power;
}

float exp_weights(const float* scores, int n, float max, float* p) {
  float lane[kLanes] = {};
  for (int i = 0; i < n; ++i) {
    p[i] = exp_of(scores[i] - max);
    lane[i % kLanes] += p[i];
  }
  return lane_sum(lane);
}

void tile_scores(const float* q, size_t q_stride, int n_queries, const float* y, int n, float* out,
                 size_t out_stride) {
  for (int i = 0; i < n_queries; ++i, q += q_stride, out += out_stride) {
    for (int t = 0; t < 64; ++t) out[t] = 0.0f;
    for (int c = 0; c < n; ++c) {
      for (int t = 0; t < 64; ++t) out[t] = std::fma(q[c], y[c * 64 + t], out[t]);
    }
  }
}

void tile_accumulate(const float* p, size_t p_stride, int n_queries, const float* v, int stride,
                     float* acc, size_t acc_stride) {
  for (int i = 0; i < n_queries; ++i, p += p_stride, acc += acc_stride) {
    for (int t = 0; t < 64; ++t) {
      for (int c = 0; c < stride; ++c) acc[c] = std::fma(p[t], v[t * stride + c], acc[c]);
    }
  }
}

void transpose(const float* in, size_t in_stride, int n_in, int n_out, float* out, size_t out_stride) {
  for (size_t i = 0; i < static_cast<size_t>(n_in); ++i) {
    for (size_t j = 0; j < static_cast<size_t>(n_out); ++j) {
      out[j * out_stride + i] = in[i * in_stride + j];
    }
  }
}

}  // namespace

const Kernels kScalarKernels = {
    .name = "scalar",
    .halves_to_floats = halves_to_floats,
    .visible_bits = visible_bits,
    .make_tables = make_tables,
    .quantise_tables = quantise_tables,
    .scan = scan,
    .quantise_products = quantise_products,
    .scan_products = scan_products,
    .add_sums = add_sums,
    .max_weight = max_weight,
    .quantise_weights = quantise_weights,
    .value_dots = value_dots,
    .dot = dot,
    .dense_scores = dense_scores,
    .dense_accumulate = dense_accumulate,
    .max_score = max_score,
    .exp_weights = exp_weights,
    .tile_scores = tile_scores,
    .tile_accumulate = tile_accumulate,
    .transpose = transpose,
};

}  // namespace headq
