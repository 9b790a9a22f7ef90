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
  for (int i = 0; i <= 129; ++i) {
    const int n = i % 65;
    const unsigned n_values = i < 65 ? 5 : 3;  // with and without biases
    auto mask = filled<uint16_t>(static_cast<size_t>(n), [&] { return values[random() % n_values]; });
    uint64_t wanted = 0;
    bool biased = false, wanted_biased = false;
    for (int t = 0; t < n; ++t) {
      const Half x = mask.get()[t];
      wanted |= static_cast<uint64_t>(x != 0xfc00) << t;
      wanted_biased = wanted_biased || (x != 0xfc00 && x != 0x0000 && x != 0x8000);
    }
    ASSERT_EQ(kernels().visible_bits(mask.get(), n, &biased), wanted) << n;
    ASSERT_EQ(biased, wanted_biased) << n;
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
    const size_t n = static_cast<size_t>(n_groups);
    Guarded<float> got(n * 16), wanted(n * 16), largest(n), wanted_largest(n);
    kernels().make_tables(in.term_begin.data(), in.patterns.get(), in.c.get(), 0, n_groups, got.get(),
                          largest.get());
    kScalarKernels.make_tables(in.term_begin.data(), in.patterns.get(), in.c.get(), 0, n_groups, wanted.get(),
                               wanted_largest.get());
    ASSERT_TRUE(got.same_bits(wanted) && largest.same_bits(wanted_largest));
    ASSERT_TRUE(got.intact() && largest.intact());
    for (int n_wide : {0, n_groups / 2, n_groups}) {
      std::vector<float> inv;
      for (int g = 0; g < n_groups; ++g) {
        const float top = static_cast<float>(g < n_wide ? kTableTop : kNarrowTop);
        const float most = largest.get()[g];
        inv.push_back(most > 0.0f ? top / most : 0.0f);
      }
      Guarded<int8_t> low(n * 16), high(n * 16);
      kernels().quantise_tables(wanted.get(), n_groups, n_wide, inv.data(), low.get(), high.get());
      ASSERT_TRUE(low.intact() && high.intact());
      for (size_t i = 0; i < n * 16; ++i) {
        ASSERT_EQ(low.get()[i] + kHighFactor * high.get()[i], std::lrint(wanted.get()[i] * inv[i / 16])) << i;
        ASSERT_TRUE(high.get()[i] == 0 || static_cast<int>(i / 16) < n_wide) << i;
      }
    }
  }
}

TEST_P(KernelLevels, ScanSumsAreExact) {
  std::mt19937 random(4);
  for (int n_groups : {1, 2, 3, 4, 7, 8, 31, 32, 33, 64, 128, 255, 256, 257, 511, 512, 513, 530}) {
    for (int n_queries : {1, 2, 3, 4, 7}) {
      for (int n_wide : {0, 1, 3, 4, 30, 280, n_groups}) {
        if (n_wide > n_groups) continue;
        const size_t n = static_cast<size_t>(n_groups), stride = n + 1, queries = static_cast<size_t>(n_queries);
        auto codes = filled<uint8_t>(n * 32, [&] { return static_cast<uint8_t>(random()); });
        // The largest entries everywhere in every other case: where sums of 16 bits would overflow.
        const bool extreme = n_groups % 2 == 0;
        auto low = filled<int8_t>(queries * stride * 16, [&] {
          return static_cast<int8_t>(extreme ? kNarrowTop : static_cast<int>(random() % 255) - 127);
        });
        auto high = filled<int8_t>(low.size(), [&] {
          return static_cast<int8_t>(extreme ? -kNarrowTop : static_cast<int>(random() % 255) - 127);
        });
        auto factor = filled<uint8_t>(queries * stride, [&] {
          return static_cast<uint8_t>(extreme ? kMostFactor : random() % kMostFactor + 1);
        });
        for (size_t i = 0; i < factor.size(); ++i) {
          if (static_cast<int>(i % stride) < n_wide) factor.get()[i] = 1;
        }
        for (size_t i = 0; i < high.size(); ++i) {  // only in wide groups, and not in all of these
          if (static_cast<int>(i / 16 % stride) >= n_wide || i / 16 % 5 == 4) high.get()[i] = 0;
        }
        Guarded<int32_t> sums(queries * 64);
        kernels().scan(codes.get(), n_groups, n_wide, low.get(), high.get(), factor.get(), stride, n_queries,
                       sums.get());
        ASSERT_TRUE(sums.intact());
        for (size_t q = 0; q < queries; ++q) {
          for (size_t t = 0; t < 64; ++t) {
            int64_t wanted = 0;
            for (size_t g = 0; g < n; ++g) {
              const size_t nibble = codes.get()[g * 32 + t % 32] >> (t / 32 * 4) & 15;
              const size_t entry = (q * stride + g) * 16 + nibble;
              wanted += factor.get()[q * stride + g] * low.get()[entry] + kHighFactor * high.get()[entry];
            }
            ASSERT_EQ(sums.get()[q * 64 + t], wanted)
                << n_groups << " groups, " << n_wide << " wide, query " << q << ", token " << t;
          }
        }
      }
    }
  }
}

TEST_P(KernelLevels, ProductsAndTheirIntegers) {
  std::mt19937 random(15);
  std::normal_distribution<float> normal;
  for (int n : {8, 16, 24, 72, 264}) {
    const size_t size = static_cast<size_t>(n);
    auto halves = filled<float>(size, [&] { return normal(random); });
    auto factors = filled<float>(size, [&] { return random() % 5 == 0 ? 0.0f : normal(random); });
    Guarded<int8_t> low(size), high(size);
    const float unit = kernels().quantise_products(halves.get(), factors.get(), n, low.get(), high.get());
    ASSERT_TRUE(low.intact() && high.intact());
    Guarded<int8_t> low_wanted(size), high_wanted(size);
    ASSERT_EQ(unit, kScalarKernels.quantise_products(halves.get(), factors.get(), n, low_wanted.get(), high_wanted.get()));
    int largest = 0;
    for (size_t i = 0; i < size; ++i) {
      const int c = low.get()[i] + 256 * high.get()[i];
      ASSERT_EQ(c, low_wanted.get()[i] + 256 * high_wanted.get()[i]) << i;
      ASSERT_NEAR(c * static_cast<double>(unit), static_cast<double>(halves.get()[i]) * factors.get()[i], 0.501 * static_cast<double>(unit));
      largest = std::max(largest, std::abs(c));
    }
    ASSERT_EQ(largest, kProductTop);
    std::fill_n(factors.get(), size, 0.0f);
    ASSERT_EQ(kernels().quantise_products(halves.get(), factors.get(), n, low.get(), high.get()), 0.0f);
    for (size_t i = 0; i < size; ++i) ASSERT_TRUE(low.get()[i] == 0 && high.get()[i] == 0);
  }
}

TEST_P(KernelLevels, ScansOfProductsAreExact) {
  std::mt19937 random(16);
  for (int n_groups : {1, 2, 3, 4, 5, 7, 8, 9, 39, 40, 41, 43, 128, 257}) {
    for (int n_queries : {1, 2, 3, 4, 7}) {
      const bool extreme = n_groups % 2 == 0;
      const size_t n = static_cast<size_t>(n_groups), queries = static_cast<size_t>(n_queries);
      const size_t stride = (n + 3) / 4 * 8;
      auto codes = filled<uint8_t>(n * 32, [&] { return static_cast<uint8_t>(extreme ? 255 : random()); });
      auto any = [&] { return static_cast<int8_t>(extreme ? -128 : static_cast<int>(random() % 256) - 128); };
      auto low = filled<int8_t>(queries * stride, any), high = filled<int8_t>(queries * stride, any);
      Guarded<int32_t> sums(queries * 64);
      kernels().scan_products(codes.get(), n_groups, low.get(), high.get(), stride, n_queries, sums.get());
      ASSERT_TRUE(sums.intact());
      for (size_t q = 0; q < queries; ++q) {
        for (size_t t = 0; t < 64; ++t) {
          int64_t wanted = 0;
          for (size_t g = 0; g < n; ++g) {
            const int nibble = codes.get()[g * 32 + t % 32] >> (t / 32 * 4) & 15;
            const size_t a = q * stride + g / 4 * 8 + g % 4, b = a + 4;
            wanted += (low.get()[a] + 256 * high.get()[a]) * (nibble & 3);
            wanted += (low.get()[b] + 256 * high.get()[b]) * (nibble >> 2);
          }
          ASSERT_EQ(sums.get()[q * 64 + t], wanted) << n_groups << " groups, query " << q << ", token " << t;
        }
      }
    }
  }
}

TEST_P(KernelLevels, AddsSums) {
  std::mt19937 random(9);
  std::normal_distribution<float> normal;
  auto sums = filled<int32_t>(64, [&] { return static_cast<int32_t>(random() % 2000001) - 1000000; });
  auto scale = filled<float>(64, [&] { return normal(random); });
  auto zero = filled<float>(64, [&] { return normal(random); });
  for (const float* s : {static_cast<const float*>(nullptr), static_cast<const float*>(scale.get())}) {
    auto got = filled<float>(64, [&] { return 1.5f; });
    auto wanted = filled<float>(64, [&] { return 1.5f; });
    kernels().add_sums(sums.get(), 1e-3f, s, zero.get(), 0.7f, got.get());
    kScalarKernels.add_sums(sums.get(), 1e-3f, s, zero.get(), 0.7f, wanted.get());
    ASSERT_TRUE(got.same_bits(wanted) && got.intact());
    const double by_hand = 1e-3 * sums.get()[5];
    EXPECT_NEAR(got.get()[5], 1.5 + (s == nullptr ? by_hand : s[5] * by_hand + zero.get()[5] * 0.7), 1e-3);
  }
}

TEST_P(KernelLevels, WeightsAndValueDots) {
  std::mt19937 random(5);
  std::exponential_distribution<float> weight(30.0f);
  for (int n_sums : {1, 2, 3, 4, 5, 64, 65}) {
    for (int n_queries : {1, 2, 3, 5}) {
      for (int n_blocks : {1, 3, kMostValueBlocks}) {
        const bool extreme = n_blocks == kMostValueBlocks && n_sums == 64;  // all at their largest
        const size_t n = static_cast<size_t>(n_sums), queries = static_cast<size_t>(n_queries);
        const int first_group = 2, n_groups = static_cast<int>(n) + 1;
        Guarded<int> group(n * 2);
        Guarded<int8_t> tables(n * 32);
        const auto any_group = [&] { return first_group + static_cast<int>(random() % static_cast<size_t>(n_groups)); };
        for (size_t j = 0; j < n * 2; j += 2) {
          // Groups of their own, those of the sum before, or a chain with it.
          const size_t kind = j == 0 || group.get()[j - 1] < 0 ? 0 : random() % 3;
          group.get()[j] = kind == 0 ? any_group() : group.get()[kind == 1 ? j - 2 : j - 1];
          group.get()[j + 1] = kind == 1 ? group.get()[j - 1] : any_group();
          // Every third sum has one table, and all have one where there are two queries.
          if (j % 3 == 2 || n_queries == 2) group.get()[j + 1] = -1;
        }
        for (size_t j = 0; j < n * 2; ++j) {
          const bool absent = group.get()[j] < 0;
          const int lowest = -63 - static_cast<int>(j % 2);
          for (size_t m = j * 16; m < j * 16 + 16; ++m) {
            tables.get()[m] = static_cast<int8_t>(absent ? 0 : extreme ? lowest : static_cast<int>(random() % 127) + lowest);
          }
        }
        Guarded<uint8_t> w(static_cast<size_t>(n_blocks) * queries * kWeightBytes);
        std::vector<std::vector<uint8_t>> codes;
        std::vector<const uint8_t*> pointers;
        std::vector<int64_t> wanted(queries * n, 0);
        for (int b = 0; b < n_blocks; ++b) {
          codes.emplace_back(static_cast<size_t>(first_group + n_groups) * 32);
          for (uint8_t& x : codes.back()) x = static_cast<uint8_t>(random());
          for (size_t q = 0; q < queries; ++q) {
            auto p = filled<float>(64, [&] { return extreme ? 1.0f : random() % 5 == 0 ? 0.0f : weight(random); });
            auto scale = filled<float>(64, [&] { return weight(random); });
            const float* s = q % 2 == 1 && !extreme ? scale.get() : nullptr;
            const uint64_t mask = q == 2 ? random() * uint64_t{0x9e3779b97f4a7c15} : ~uint64_t{0};
            float largest = 0.0f;
            std::vector<float> x(64, 0.0f);
            for (size_t t = 0; t < 64; ++t) {
              if ((mask >> t & 1) != 0) x[t] = s != nullptr ? p.get()[t] * s[t] : p.get()[t];
              largest = std::max(largest, x[t]);
            }
            ASSERT_EQ(kernels().max_weight(p.get(), s, mask), largest);
            const float inv = static_cast<float>(kWeightTop) / largest;
            kernels().quantise_weights(p.get(), s, mask, inv,
                                       w.get() + (static_cast<size_t>(b) * queries + q) * kWeightBytes);
            for (size_t i = 0; i < n; ++i) {
              for (size_t t = 0; t < 64; ++t) {
                for (size_t j = 2 * i; j < 2 * i + 2; ++j) {
                  if (group.get()[j] < 0) continue;
                  const size_t byte = static_cast<size_t>(group.get()[j]) * 32 + t % 32;
                  const int nibble = codes.back()[byte] >> (t / 32 * 4) & 15;
                  wanted[q * n + i] += std::lrint(x[t] * inv) * tables.get()[j * 16 + static_cast<size_t>(nibble)];
                }
              }
            }
          }
        }
        for (const auto& block : codes) pointers.push_back(block.data());
        Guarded<float> out(queries * n);
        kernels().value_dots(pointers.data(), n_blocks, group.get(), tables.get(), n_sums, w.get(), n_queries,
                             out.get());
        ASSERT_TRUE(out.intact() && w.intact());
        for (size_t i = 0; i < wanted.size(); ++i) {
          ASSERT_EQ(out.get()[i], static_cast<float>(wanted[i])) << n_sums << " sums, " << i;
        }
      }
    }
  }
}

TEST_P(KernelLevels, WeightsOfNoTokensAreZero) {
  const std::vector<float> p(64, 1.0f);
  EXPECT_EQ(kernels().max_weight(p.data(), nullptr, 0), 0.0f);
  uint8_t w[kWeightBytes];
  kernels().quantise_weights(p.data(), nullptr, 0, 5.0f, w);
  for (uint8_t x : w) EXPECT_EQ(x, 0);
}

TEST_P(KernelLevels, TilesOfManyQueries) {
  std::mt19937 random(10);
  std::normal_distribution<float> normal;
  for (int n_queries : {1, 2, 3, 4, 6, 9}) {
    for (int n : {1, 16, 17, 80, 128}) {
      const size_t queries = static_cast<size_t>(n_queries), width = static_cast<size_t>(n);
      const size_t stride = width + 3;
      auto q = filled<float>(queries * stride, [&] { return normal(random); });
      auto y = filled<float>(width * 64, [&] { return normal(random); });
      Guarded<float> got(queries * 70), wanted(queries * 70);
      for (size_t i = 0; i < got.size(); ++i) got.get()[i] = wanted.get()[i] = 0.25f;
      kernels().tile_scores(q.get(), stride, n_queries, y.get(), n, got.get(), 70);
      kScalarKernels.tile_scores(q.get(), stride, n_queries, y.get(), n, wanted.get(), 70);
      ASSERT_TRUE(got.same_bits(wanted) && got.intact()) << n_queries << " x " << n;
      double by_hand = 0.0;
      for (size_t c = 0; c < width; ++c) by_hand += static_cast<double>(q.get()[c]) * y.get()[c * 64 + 9];
      ASSERT_NEAR(got.get()[9], by_hand, 1e-4);

      const int padded = (n + 15) / 16 * 16;
      const size_t wide = static_cast<size_t>(padded);
      auto p = filled<float>(queries * 66, [&] { return normal(random); });
      auto v = filled<float>(64 * wide, [&] { return normal(random); });
      Guarded<float> acc(queries * (wide + 5)), acc_wanted(queries * (wide + 5));
      for (size_t i = 0; i < acc.size(); ++i) acc.get()[i] = acc_wanted.get()[i] = normal(random);
      by_hand = acc.get()[wide - 1];
      for (size_t t = 0; t < 64; ++t) by_hand += static_cast<double>(p.get()[t]) * v.get()[t * wide + wide - 1];
      kernels().tile_accumulate(p.get(), 66, n_queries, v.get(), padded, acc.get(), wide + 5);
      kScalarKernels.tile_accumulate(p.get(), 66, n_queries, v.get(), padded, acc_wanted.get(), wide + 5);
      ASSERT_TRUE(acc.same_bits(acc_wanted) && acc.intact()) << n_queries << " x " << padded;
      ASSERT_NEAR(acc.get()[wide - 1], by_hand, 1e-4);
    }
  }
}

TEST_P(KernelLevels, Transposes) {
  std::mt19937 random(11);
  for (const auto& [n_in, n_out] : {std::pair{16, 16}, std::pair{64, 48}, std::pair{80, 64}}) {
    const size_t rows = static_cast<size_t>(n_in), columns = static_cast<size_t>(n_out);
    auto in = filled<float>(rows * (columns + 2), [&] { return static_cast<float>(random() % 1000); });
    Guarded<float> out(columns * (rows + 1));
    kernels().transpose(in.get(), columns + 2, n_in, n_out, out.get(), rows + 1);
    ASSERT_TRUE(out.intact());
    for (size_t i = 0; i < rows; ++i) {
      for (size_t j = 0; j < columns; ++j) ASSERT_EQ(out.get()[j * (rows + 1) + i], in.get()[i * (columns + 2) + j]);
    }
  }
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

TEST_P(KernelLevels, Dots) {
  std::mt19937 random(8);
  std::normal_distribution<float> normal;
  for (int n : {16, 64, 80}) {
    auto a = filled<float>(static_cast<size_t>(n), [&] { return normal(random); });
    auto b = filled<float>(static_cast<size_t>(n), [&] { return normal(random); });
    double wanted = 0.0;
    for (int i = 0; i < n; ++i) wanted += static_cast<double>(a.get()[i]) * b.get()[i];
    EXPECT_EQ(kernels().dot(a.get(), b.get(), n), kScalarKernels.dot(a.get(), b.get(), n));
    EXPECT_NEAR(kernels().dot(a.get(), b.get(), n), wanted, 1e-4);
  }
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
