#include "attention/kernels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "attention/dispatch.h"
#include "core/half.h"

// Every level gives the bits of the scalar level, for every size around its vector width and on
// misaligned data.

namespace headq {
namespace {

class KernelLevels : public testing::TestWithParam<Isa> {
 protected:
  const Kernels& kernels() const { return kernels_for(GetParam()); }
};

std::string level_name(const testing::TestParamInfo<Isa>& info) {
  return std::string(isa_name(info.param));
}
INSTANTIATE_TEST_SUITE_P(All, KernelLevels, testing::ValuesIn(available_isas()), level_name);

// Data one element off any alignment, guarded by a canary behind it.
template <typename T>
class Guarded {
 public:
  explicit Guarded(size_t n) : n_(n), data_(n + 2) {
    data_[n + 1] = static_cast<T>(77);
  }
  T* get() { return data_.data() + 1; }
  size_t size() const { return n_; }
  bool intact() const { return data_[n_ + 1] == static_cast<T>(77); }
  bool same_bits(const Guarded& other) const {
    return std::memcmp(data_.data() + 1, other.data_.data() + 1, n_ * sizeof(T)) == 0;
  }

 private:
  size_t n_;
  std::vector<T> data_;
};

template <typename T, typename Make>
Guarded<T> filled(size_t n, const Make& make) {
  Guarded<T> out(n);
  for (size_t i = 0; i < n; ++i) out.get()[i] = make();
  return out;
}

TEST_P(KernelLevels, IsTheLevelAskedFor) { EXPECT_EQ(kernels().name, isa_name(GetParam())); }

TEST_P(KernelLevels, HalvesToFloats) {
  std::mt19937 random(1);
  for (size_t n = 0; n < 70; ++n) {
    auto in = filled<uint16_t>(n, [&] { return static_cast<uint16_t>(random() % 0x7c00u); });
    Guarded<float> got(n), wanted(n);
    kernels().halves_to_floats(in.get(), n, got.get());
    kScalarKernels.halves_to_floats(in.get(), n, wanted.get());
    ASSERT_TRUE(got.same_bits(wanted)) << n;
    ASSERT_TRUE(got.intact()) << n;
  }
}

TEST_P(KernelLevels, VisibleBits) {
  std::mt19937 random(2);
  const Half values[] = {0x0000, 0x8000, 0xfc00, float_to_half(-3.0f), 0x7c00};
  for (int n = 0; n <= 64; ++n) {
    auto mask = filled<uint16_t>(static_cast<size_t>(n), [&] { return values[random() % 5]; });
    uint64_t wanted = 0;
    for (int t = 0; t < n; ++t) wanted |= static_cast<uint64_t>(mask.get()[t] != 0xfc00) << t;
    ASSERT_EQ(kernels().visible_bits(mask.get(), n), wanted) << n;
  }
}

struct TableCase {
  std::vector<int> term_begin = {0};
  Guarded<float> patterns{0}, c{0};
};

TableCase random_tables(int n_groups, std::mt19937& random) {
  TableCase out;
  for (int g = 0; g < n_groups; ++g) {
    out.term_begin.push_back(out.term_begin.back() + static_cast<int>(random() % 4));
  }
  std::normal_distribution<float> normal;
  const size_t n_terms = static_cast<size_t>(out.term_begin.back());
  out.patterns = filled<float>(n_terms * 16, [&] { return normal(random); });
  out.c = filled<float>(n_terms, [&] { return normal(random); });
  return out;
}

TEST_P(KernelLevels, TablesAndTheirIntegers) {
  std::mt19937 random(3);
  for (int n_groups : {1, 2, 3, 5, 16, 33}) {
    TableCase in = random_tables(n_groups, random);
    const size_t n = static_cast<size_t>(n_groups) * 16;
    Guarded<float> got(n), wanted(n);
    const float max = kernels().make_tables(in.term_begin.data(), in.patterns.get(), in.c.get(), 0,
                                            n_groups, got.get());
    ASSERT_EQ(max, kScalarKernels.make_tables(in.term_begin.data(), in.patterns.get(), in.c.get(),
                                              0, n_groups, wanted.get()));
    ASSERT_TRUE(got.same_bits(wanted));
    Guarded<uint8_t> lo(n), hi(n), lo_wanted(n), hi_wanted(n);
    const float inv = max > 0.0f ? 32767.0f / max : 0.0f;
    kernels().quantise_tables(wanted.get(), n_groups, inv, lo.get(), hi.get());
    kScalarKernels.quantise_tables(wanted.get(), n_groups, inv, lo_wanted.get(), hi_wanted.get());
    ASSERT_TRUE(lo.same_bits(lo_wanted) && hi.same_bits(hi_wanted)) << n_groups;
    ASSERT_TRUE(got.intact() && lo.intact() && hi.intact());
  }
}

TEST_P(KernelLevels, ScanSumsAreExact) {
  std::mt19937 random(4);
  for (int n_groups : {1, 2, 3, 7, 8, 31, 32, 33, 64, 128, 255, 256, 257, 511, 512, 513, 530}) {
    const size_t n = static_cast<size_t>(n_groups);
    auto codes = filled<uint8_t>(n * 32, [&] { return static_cast<uint8_t>(random()); });
    // The largest entries everywhere in every other case: where 16-bit sums would overflow.
    const bool extreme = n_groups % 2 == 0;
    auto lo = filled<uint8_t>(n * 16, [&] { return static_cast<uint8_t>(extreme ? 255 : random()); });
    auto hi = filled<uint8_t>(n * 16, [&] { return static_cast<uint8_t>(extreme ? 255 : random()); });
    Guarded<int32_t> sums(64);
    kernels().scan(codes.get(), n_groups, lo.get(), hi.get(), sums.get());
    ASSERT_TRUE(sums.intact());
    for (int t = 0; t < 64; ++t) {
      int64_t wanted = 0;
      for (int g = 0; g < n_groups; ++g) {
        const int nibble = codes.get()[g * 32 + t % 32] >> (t / 32 * 4) & 15;
        wanted += lo.get()[g * 16 + nibble] + 256 * hi.get()[g * 16 + nibble] - 32768;
      }
      ASSERT_EQ(sums.get()[t], wanted) << n_groups << " groups, token " << t;
    }
  }
}

TEST_P(KernelLevels, WeightsAndValueDots) {
  std::mt19937 random(5);
  std::exponential_distribution<float> weight(30.0f);
  for (int n_terms : {1, 2, 3, 64, 65}) {
    auto p = filled<float>(64, [&] { return random() % 5 == 0 ? 0.0f : weight(random); });
    auto scale = filled<float>(64, [&] { return weight(random); });
    for (const float* s : {static_cast<const float*>(nullptr), static_cast<const float*>(scale.get())}) {
      Guarded<int16_t> w(64), w_wanted(64);
      ASSERT_EQ(kernels().quantise_weights(p.get(), s, w.get()),
                kScalarKernels.quantise_weights(p.get(), s, w_wanted.get()));
      ASSERT_TRUE(w.same_bits(w_wanted) && w.intact());
      const size_t n = static_cast<size_t>(n_terms);
      auto codes = filled<uint8_t>(n * 32, [&] { return static_cast<uint8_t>(random()); });
      auto group = filled<int>(n, [&] { return static_cast<int>(random() % n); });
      auto tables = filled<int8_t>(n * 16, [&] { return static_cast<int8_t>(random()); });
      Guarded<int32_t> out(n);
      kernels().value_dots(codes.get(), group.get(), tables.get(), n_terms, w.get(), out.get());
      ASSERT_TRUE(out.intact());
      for (size_t i = 0; i < n; ++i) {
        int64_t wanted = 0;
        for (int t = 0; t < 64; ++t) {
          const int nibble = codes.get()[group.get()[i] * 32 + t % 32] >> (t / 32 * 4) & 15;
          wanted += w.get()[t] * tables.get()[i * 16 + static_cast<size_t>(nibble)];
        }
        ASSERT_EQ(out.get()[i], wanted) << i;
      }
    }
  }
}

TEST_P(KernelLevels, AllZeroWeightsStayZero) {
  const std::vector<float> p(64, 0.0f);
  int16_t w[64];
  EXPECT_EQ(kernels().quantise_weights(p.data(), nullptr, w), 0.0f);
  for (int16_t x : w) EXPECT_EQ(x, 0);
}

TEST_P(KernelLevels, DenseRows) {
  std::mt19937 random(6);
  std::normal_distribution<float> normal;
  for (int stride : {16, 32, 80, 96, 256}) {
    for (int n : {0, 1, 2, 7, 64}) {
      const size_t row = static_cast<size_t>(stride);
      auto rows = filled<uint16_t>(row * static_cast<size_t>(n), [&] { return float_to_half(normal(random)); });
      auto q = filled<float>(row, [&] { return normal(random); });
      auto w = filled<float>(static_cast<size_t>(n), [&] { return random() % 3 == 0 ? 0.0f : normal(random); });
      Guarded<float> got(static_cast<size_t>(n)), wanted(static_cast<size_t>(n));
      kernels().dense_scores(rows.get(), stride, n, q.get(), got.get());
      kScalarKernels.dense_scores(rows.get(), stride, n, q.get(), wanted.get());
      ASSERT_TRUE(got.same_bits(wanted) && got.intact()) << stride << " x " << n;
      Guarded<float> acc(row), acc_wanted(row);
      for (size_t c = 0; c < row; ++c) acc.get()[c] = acc_wanted.get()[c] = normal(random);
      kernels().dense_accumulate(rows.get(), stride, n, w.get(), acc.get());
      kScalarKernels.dense_accumulate(rows.get(), stride, n, w.get(), acc_wanted.get());
      ASSERT_TRUE(acc.same_bits(acc_wanted) && acc.intact()) << stride << " x " << n;
    }
  }
}

TEST_P(KernelLevels, RowsOfWeightZeroAreNotTouched) {
  std::vector<uint16_t> rows(2 * 16, 0x7e00);  // NaN
  for (int c = 0; c < 16; ++c) rows[static_cast<size_t>(c)] = float_to_half(2.0f);
  const float w[2] = {1.0f, 0.0f};
  std::vector<float> acc(16, 1.0f);
  kernels().dense_accumulate(rows.data(), 16, 2, w, acc.data());
  for (float x : acc) EXPECT_EQ(x, 3.0f);
}

TEST_P(KernelLevels, SoftmaxParts) {
  std::mt19937 random(7);
  std::normal_distribution<float> normal(0.0f, 20.0f);
  for (int n : {16, 32, 48, 1024}) {
    const size_t size = static_cast<size_t>(n);
    auto scores = filled<float>(size, [&] { return random() % 7 == 0 ? -INFINITY : normal(random); });
    scores.get()[3] = 0.0f;
    const float max = kernels().max_score(scores.get(), n);
    ASSERT_EQ(max, kScalarKernels.max_score(scores.get(), n));
    Guarded<float> got(size), wanted(size);
    const float sum = kernels().exp_weights(scores.get(), n, max, got.get());
    ASSERT_EQ(sum, kScalarKernels.exp_weights(scores.get(), n, max, wanted.get()));
    ASSERT_TRUE(got.same_bits(wanted) && got.intact());
  }
}

TEST_P(KernelLevels, DotsOf64) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  auto a = filled<float>(64, [&] { return normal(random); });
  auto b = filled<float>(64, [&] { return normal(random); });
  EXPECT_EQ(kernels().dot64(a.get(), b.get()), kScalarKernels.dot64(a.get(), b.get()));
}

TEST(ScalarKernels, ExpIsAccurateAndCutsOff) {
  for (float x = -86.9f; x <= 0.0f; x += 0.0137f) {
    std::vector<float> scores(16, x), p(16);
    kScalarKernels.exp_weights(scores.data(), 16, 0.0f, p.data());
    const double wanted = std::exp(static_cast<double>(x));
    ASSERT_LE(std::fabs(p[0] - wanted), wanted * 0x1p-21) << x;
  }
  std::vector<float> scores(16, -INFINITY), p(16, 1.0f);
  scores[1] = -87.01f;
  scores[2] = 0.0f;
  EXPECT_EQ(kScalarKernels.exp_weights(scores.data(), 16, 0.0f, p.data()), 1.0f);
  EXPECT_EQ(p[0], 0.0f);
  EXPECT_EQ(p[1], 0.0f);
  EXPECT_EQ(p[2], 1.0f);
}

TEST(ScalarKernels, NanScoresAreNotHidden) {
  std::vector<float> scores(16, 0.0f), p(16);
  scores[5] = NAN;
  EXPECT_TRUE(std::isnan(kScalarKernels.exp_weights(scores.data(), 16, 0.0f, p.data())));
}

}  // namespace
}  // namespace headq
