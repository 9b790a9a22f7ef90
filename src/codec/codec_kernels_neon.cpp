#include <arm_neon.h>

#include "codec/codec_kernels.h"

namespace headq {
namespace {

// kStrips of 16 coordinates at once.
template <int kStrips>
void transform_strips(const float* columns, int n_in, int stride, const float* x, float* y) {
  float32x4_t sum[4 * kStrips];
  for (float32x4_t& s : sum) s = vdupq_n_f32(0.0f);
  for (int i = 0; i < n_in; ++i, columns += stride) {
    for (int j = 0; j < 4 * kStrips; ++j) {
      sum[j] = vaddq_f32(sum[j], vmulq_n_f32(vld1q_f32(columns + 4 * j), x[i]));
    }
  }
  for (int j = 0; j < 4 * kStrips; ++j) vst1q_f32(y + 4 * j, sum[j]);
}

void transform(const float* columns, int n_in, int stride, const float* x, float* y) {
  int c = 0;
  for (; c + 64 <= stride; c += 64) transform_strips<4>(columns + c, n_in, stride, x, y + c);
  for (; c + 32 <= stride; c += 32) transform_strips<2>(columns + c, n_in, stride, x, y + c);
  if (c < stride) transform_strips<1>(columns + c, n_in, stride, x, y + c);
}

void to_halves(const float* in, size_t n, uint16_t* out) {
  size_t i = 0;
  for (; i + 4 <= n; i += 4) vst1_u16(out + i, vreinterpret_u16_f16(vcvt_f16_f32(vld1q_f32(in + i))));
  for (; i < n; ++i) out[i] = vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(in[i]))), 0);
}

// The best nibble before each of 4 values; a later one wins only when it is strictly less.
struct Best {
  float32x4_t cost;
  uint32x4_t from;
};

Best best_of(const float* cost, const float* pairs) {
  Best best = {vaddq_f32(vdupq_n_f32(cost[0]), vld1q_f32(pairs)), vdupq_n_u32(0)};
  for (uint32_t m = 1; m < 16; ++m) {
    const float32x4_t c = vaddq_f32(vdupq_n_f32(cost[m]), vld1q_f32(pairs + m * 16));
    const uint32x4_t less = vcltq_f32(c, best.cost);
    best.cost = vbslq_f32(less, c, best.cost);
    best.from = vbslq_u32(less, vdupq_n_u32(m), best.from);
  }
  return best;
}

void viterbi(const TrellisView& v, const float* y, uint8_t (*from)[16], float* cost) {
  for (int n = 0; n < 16; ++n) cost[n] = 0.0f;
  for (int g = 0; g < v.n_nibbles; ++g) {
    float next[16];
    uint32x4_t best_from[4];
    for (int quarter = 0; quarter < 4; ++quarter) {
      const int n = 4 * quarter;
      Best best = {vdupq_n_f32(0.0f), vdupq_n_u32(0)};
      if (g > 0) best = best_of(cost, v.pairs + g * 256 + n);
      float32x4_t sum = vaddq_f32(best.cost, vld1q_f32(v.norms + g * 16 + n));
      for (int i = v.term_begin[g]; i < v.term_begin[g + 1]; ++i) {
        const float twice = -2.0f * y[v.coords[i]];
        sum = vaddq_f32(sum, vmulq_n_f32(vld1q_f32(v.table + i * 16 + n), twice));
      }
      vst1q_f32(next + n, sum);
      best_from[quarter] = best.from;
    }
    const uint16x8_t a = vmovn_high_u32(vmovn_u32(best_from[0]), best_from[1]);
    const uint16x8_t b = vmovn_high_u32(vmovn_u32(best_from[2]), best_from[3]);
    vst1q_u8(from[g], vmovn_high_u16(vmovn_u16(a), b));
    for (int n = 0; n < 16; ++n) cost[n] = next[n];
  }
}

void add_lookups(const uint8_t* codes, const float* table, float* out) {
  static constexpr uint8_t kSpread[16] = {0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3};
  static constexpr uint8_t kByte[16] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
  const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(table);
  const uint8x16x4_t entries = {{vld1q_u8(bytes), vld1q_u8(bytes + 16), vld1q_u8(bytes + 32), vld1q_u8(bytes + 48)}};
  const uint8x16_t spread = vld1q_u8(kSpread), byte = vld1q_u8(kByte);
  for (int t = 0; t < 32; t += 16) {
    const uint8x16_t c = vld1q_u8(codes + t);
    const uint8x16_t nibbles[2] = {vandq_u8(c, vdupq_n_u8(15)), vshrq_n_u8(c, 4)};
    for (int half = 0; half < 2; ++half) {
      for (uint8_t i = 0; i < 16; i += 4) {  // four tokens: bytes 4n to 4n + 3 of the table
        const uint8x16_t four = vqtbl1q_u8(nibbles[half], vaddq_u8(spread, vdupq_n_u8(i)));
        const uint8x16_t index = vorrq_u8(vshlq_n_u8(four, 2), byte);
        const float32x4_t x = vreinterpretq_f32_u8(vqtbl4q_u8(entries, index));
        float* const to = out + 32 * half + t + i;
        vst1q_f32(to, vaddq_f32(vld1q_f32(to), x));
      }
    }
  }
}

}  // namespace

const CodecKernels kNeonCodecKernels = {transform, to_halves, viterbi, add_lookups};

}  // namespace headq
