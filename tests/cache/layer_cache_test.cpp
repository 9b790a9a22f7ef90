#include "cache/layer_cache.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>

#include "codec/nib_profile.h"
#include "core/error_of.h"
#include "oracle/compare.h"
#include "oracle/quant.h"
#include "oracle/rows.h"

// Which rows are packed when, and that nothing is lost on the way.

namespace headq {
namespace {

constexpr int kHeads = 2;
constexpr int kDim = 32;
constexpr size_t kWidth = kHeads * kDim;
constexpr LayerShape kShape{.n_head_kv = kHeads, .d_k = kDim, .d_v = kDim};

CacheSpec spec_of(const char* kv, int window = 32, int sinks = 4) {
  CacheSpec spec;
  spec.kv = KvSpec::parse(kv);
  spec.window = window;
  spec.sinks = sinks;
  return spec;
}

class Fixture {
 public:
  explicit Fixture(const CacheSpec& spec, int n_cells = 256, int n_streams = 1)
      : profile(testing::nib_profile(kShape, spec.kv.to_string())),
        cache(0, kShape, spec, spec.needs_profile() ? &profile : nullptr, n_cells, n_streams, pool) {}

  // Writes rows to cells and runs the steps of one attention op.
  void write(const std::vector<int64_t>& cells, int first_position = 1000) {
    const std::vector<float> rows = oracle::normal_rows(static_cast<int>(cells.size()), kWidth, next_seed++);
    cache.write_keys(cells, rows.data(), kWidth);
    cache.write_values(cells, rows.data(), kWidth);
    std::vector<uint8_t> sinks;
    for (size_t i = 0; i < cells.size(); ++i) {
      sinks.push_back(first_position + static_cast<int>(i) < cache.sinks());
    }
    cache.prepare(sinks, 1);
    for (int s = 0; s < cache.n_streams() && cache.wants_paid(); ++s) cache.code_paid(s, cache.written().back().stamp, 1);
    cache.finish_read();
  }
  void write_range(int64_t begin, int64_t end, int first_position = 1000) {
    std::vector<int64_t> cells(static_cast<size_t>(end - begin));
    std::iota(cells.begin(), cells.end(), begin);
    write(cells, first_position);
  }
  std::vector<Half> keys(int64_t cell, size_t n) const {
    std::vector<Half> rows(n * kWidth);
    cache.get_keys(cell, n, rows.data());
    return rows;
  }

  Profile profile;  // codes of nib
  DensePool pool;
  LayerCache cache;
  uint64_t next_seed = 1;
};

TEST(LayerCache, BlockIsPackedWhenItsYoungestCellIsWindowStampsOld) {
  Fixture f(spec_of("kivi2", 32, 0));
  f.write_range(0, 64 + 31);
  EXPECT_EQ(f.cache.keys().packed_mask(0), 0u);
  f.write_range(64 + 31, 64 + 32);  // stamp of cell 63 plus 32
  EXPECT_EQ(f.cache.keys().packed_mask(0), ~uint64_t{0});
  EXPECT_EQ(f.cache.values().packed_mask(0), ~uint64_t{0});
  EXPECT_EQ(f.cache.keys().dense_mask(0), 0u);
}

TEST(LayerCache, SinksStayDenseForGood) {
  Fixture f(spec_of("kivi2", 0, 3));
  f.write_range(0, 200, 0);
  EXPECT_EQ(f.cache.keys().packed_mask(0), ~uint64_t{7});
  EXPECT_EQ(f.cache.keys().dense_mask(0), 7u);
  EXPECT_EQ(f.cache.keys().packed_mask(1), ~uint64_t{0});
}

TEST(LayerCache, LastBlockOfAStreamMayBeShort) {
  Fixture f(spec_of("kivi2", 0, 0), 100);
  f.write_range(0, 100);
  EXPECT_EQ(f.cache.keys().packed_mask(1), (uint64_t{1} << 36) - 1);
}

TEST(LayerCache, BlockWithAHoleIsNotPacked) {
  Fixture f(spec_of("kivi2", 0, 0));
  f.write_range(0, 40);
  f.write_range(41, 128);
  EXPECT_EQ(f.cache.keys().packed_mask(0), 0u);
  EXPECT_EQ(f.cache.keys().packed_mask(1), ~uint64_t{0});
  f.write({40});
  EXPECT_EQ(f.cache.keys().packed_mask(0), ~uint64_t{0});
}

TEST(LayerCache, OverwritingAPackedCellKeepsTheOthersPackedUntilItIsOld) {
  Fixture f(spec_of("kivi4", 16, 0));
  f.write_range(0, 128);
  const std::vector<Half> before = f.keys(0, 64);
  f.write({10});
  EXPECT_EQ(f.cache.keys().packed_mask(0), ~(uint64_t{1} << 10));
  EXPECT_EQ(f.cache.keys().dense_mask(0), uint64_t{1} << 10);
  std::vector<Half> after = f.keys(0, 64);
  for (int t = 0; t < 64; ++t) {
    const bool same = std::equal(after.begin() + t * static_cast<int>(kWidth), after.begin() + (t + 1) * static_cast<int>(kWidth),
                                 before.begin() + t * static_cast<int>(kWidth));
    EXPECT_EQ(same, t != 10) << t;
  }
  f.write_range(128, 128 + 15);
  EXPECT_EQ(f.cache.keys().packed_mask(0), ~(uint64_t{1} << 10));
  f.write_range(128 + 15, 128 + 16);
  EXPECT_EQ(f.cache.keys().packed_mask(0), ~uint64_t{0});
}

TEST(LayerCache, StampsCountByStream) {
  Fixture f(spec_of("kivi2", 32, 0), 128, 2);
  f.write_range(0, 64);
  f.write_range(128, 256);  // the other stream's rows do not age this one's
  EXPECT_EQ(f.cache.keys().packed_mask(0), 0u);
  EXPECT_EQ(f.cache.keys().packed_mask(2), ~uint64_t{0});
}

TEST(LayerCache, AQueryReadsPackedWhatIsOldEnoughForItself) {
  Fixture f(spec_of("kivi2", 32, 0));
  f.write_range(0, 1);
  std::vector<int64_t> cells(127);
  std::iota(cells.begin(), cells.end(), 1);
  const std::vector<float> rows = oracle::normal_rows(127, kWidth, 5);
  f.cache.write_keys(cells, rows.data(), kWidth);
  f.cache.write_values(cells, rows.data(), kWidth);
  f.cache.prepare(std::vector<uint8_t>(127, 0), 1);
  // During the op both forms are there, and each row of the batch has its own horizon.
  EXPECT_EQ(f.cache.keys().packed_mask(0), ~uint64_t{0});
  EXPECT_EQ(f.cache.keys().dense_mask(0), ~uint64_t{0});
  const auto written = f.cache.written();
  for (size_t i = 0; i < written.size(); ++i) {
    EXPECT_EQ(f.cache.reads_packed(0, written[i].stamp), written[i].cell >= 63 + 32) << i;
  }
  f.cache.finish_read();
  EXPECT_EQ(f.cache.keys().dense_mask(0), 0u);
}

TEST(LayerCache, SavedRowsComeBackWithTheSameCodes) {
  Fixture f(spec_of("kivi2", 32, 4)), g(spec_of("kivi2", 32, 4));
  f.write_range(0, 200, 0);
  const std::vector<Half> keys = f.keys(0, 200);
  std::vector<Half> values(200 * kWidth);
  f.cache.get_values(0, 200, values.data());
  g.cache.set_keys(0, 200, keys.data(), 1);
  g.cache.set_values(0, 200, values.data(), 1);
  EXPECT_EQ(g.cache.keys().packed_mask(0), f.cache.keys().packed_mask(0));
  EXPECT_EQ(g.cache.keys().packed_mask(1), f.cache.keys().packed_mask(1));
  EXPECT_EQ(g.cache.values().packed_mask(1), f.cache.values().packed_mask(1));
  const size_t codes = f.cache.keys().codec(0).layout().code_bytes();
  for (size_t block : {0, 1}) {
    for (int h = 0; h < kHeads; ++h) {
      EXPECT_TRUE(std::equal(f.cache.keys().packed(block, h), f.cache.keys().packed(block, h) + codes,
                             g.cache.keys().packed(block, h)));
    }
  }
  std::vector<Half> again(200 * kWidth);
  g.cache.get_values(0, 200, again.data());
  for (size_t i = 0; i < again.size(); ++i) {
    ASSERT_NEAR(half_to_float(again[i]), half_to_float(values[i]), 4e-3) << i;
  }
}

TEST(LayerCache, RowsRestoredOverOthersArePackedAgain) {
  Fixture f(spec_of("kivi2", 32, 4)), g(spec_of("kivi2", 32, 4));
  f.write_range(0, 256, 0);
  g.write_range(0, 256, 0);
  const size_t bytes = g.pool.bytes();
  std::vector<Half> values(256 * kWidth);
  f.cache.get_values(0, 256, values.data());
  g.cache.set_keys(0, 256, f.keys(0, 256).data(), 1);
  g.cache.set_values(0, 256, values.data(), 1);
  for (size_t block : {0, 1, 2}) {
    EXPECT_EQ(g.cache.keys().packed_mask(block), f.cache.keys().packed_mask(block)) << block;
    EXPECT_EQ(g.cache.values().packed_mask(block), f.cache.values().packed_mask(block)) << block;
    EXPECT_EQ(g.cache.values().dense_mask(block), f.cache.values().dense_mask(block)) << block;
  }
  EXPECT_LE(g.pool.bytes(), bytes + size_t{8} * kBlockTokens * kWidth * sizeof(Half));  // idle chunks
}

TEST(LayerCache, ALongRestoreHoldsFewDenseRows) {
  Fixture f(spec_of("kivi2", 32, 4), 8192);
  const std::vector<float> rows = oracle::normal_rows(8192, kWidth, 3);
  std::vector<Half> halves;
  for (float x : rows) halves.push_back(float_to_half(x));
  f.cache.set_keys(0, 8192, halves.data(), 1);
  EXPECT_LT(f.pool.bytes(), size_t{16} * kBlockTokens * kWidth * sizeof(Half));
  f.cache.set_values(0, 8192, halves.data(), 1);
  EXPECT_LT(f.pool.bytes(), size_t{16} * kBlockTokens * kWidth * sizeof(Half));
  EXPECT_EQ(f.cache.keys().packed_mask(100), ~uint64_t{0});
  EXPECT_EQ(f.cache.values().packed_mask(100), ~uint64_t{0});
}

TEST(LayerCache, ErasedCellsReadZeroAndOpenTheBlock) {
  Fixture f(spec_of("kivi2", 0, 0));
  f.write_range(0, 128);
  f.cache.erase_keys(5, 3);
  f.cache.erase_values(5, 3);
  for (Half x : f.keys(5, 3)) EXPECT_EQ(x, 0);
  EXPECT_EQ(f.cache.present(0), ~(uint64_t{7} << 5));
  EXPECT_FALSE(f.cache.reads_packed(0, 1000));
  f.write_range(5, 8);
  EXPECT_EQ(f.cache.keys().packed_mask(0), ~uint64_t{0});
}

TEST(LayerCache, ClearGivesEverythingBack) {
  Fixture f(spec_of("kivi2"));
  f.write_range(0, 200, 0);
  f.cache.clear();
  const CacheBytes bytes = f.cache.bytes();
  EXPECT_EQ(bytes.n_cells, 0u);
  EXPECT_EQ(bytes.packed, 0u);
  f.write_range(0, 1, 0);
  EXPECT_EQ(f.cache.written()[0].stamp, 1u);
}

TEST(LayerCache, CopiedStreamsAreEqualAndIndependent) {
  Fixture f(spec_of("kivi2", 32, 4), 128, 2);
  f.write_range(0, 110, 0);
  f.cache.copy_keys(f.cache, 0, 1);
  f.cache.copy_values(f.cache, 0, 1);
  EXPECT_EQ(f.keys(0, 128), f.keys(128, 128));
  EXPECT_EQ(f.cache.keys().packed_mask(2), f.cache.keys().packed_mask(0));
  const std::vector<Half> source = f.keys(0, 128);
  f.write_range(128 + 110, 256);
  f.write({128 + 3});
  EXPECT_EQ(f.keys(0, 128), source);
  EXPECT_NE(f.keys(128, 128), source);
}

TEST(LayerCache, RewrittenKeysStayPackedOrDenseAsTheyWere) {
  Fixture f(spec_of("kivi8", 32, 4));
  f.write_range(0, 110, 0);
  const std::vector<Half> before = f.keys(0, 110);
  const uint64_t packed = f.cache.keys().packed_mask(0);
  ASSERT_NE(packed, 0u);
  f.cache.rewrite_keys([](int64_t cell) { return cell >= 20 && cell < 110; },
                       [](std::span<const int64_t> cells, float* rows) {
                         for (size_t i = 0; i < cells.size() * kWidth; ++i) rows[i] = -rows[i];
                       },
                       1);
  EXPECT_EQ(f.cache.keys().packed_mask(0), packed);
  EXPECT_EQ(f.cache.keys().dense_mask(0), uint64_t{15});
  const std::vector<Half> after = f.keys(0, 110);
  for (size_t i = 0; i < after.size(); ++i) {
    const float sign = i / kWidth >= 20 ? -1.0f : 1.0f;
    ASSERT_NEAR(half_to_float(after[i]), sign * half_to_float(before[i]), 0.05f) << i;
  }
}

TEST(LayerCache, BytesAreCountedAndFallToTheSpecsBits) {
  Fixture f(spec_of("kivi2", 32, 4), 4096);
  for (int first = 0; first < 4096; first += 512) f.write_range(first, first + 512, first);
  const CacheBytes bytes = f.cache.bytes();
  EXPECT_EQ(bytes.n_cells, 4096u);
  EXPECT_EQ(bytes.elements, 4096u * 2 * kWidth);
  // 32 channels: 2 bits, keys 32 / 64 tokens, values 32 / 32 channels.
  const double packed_bits = static_cast<double>(bytes.packed) * 8.0 / static_cast<double>(bytes.packed_elements);
  EXPECT_NEAR(packed_bits, (2.5 + 3.0) / 2, 0.01);
  const double held = static_cast<double>(bytes.packed + bytes.meta + f.pool.bytes());
  EXPECT_LT(held * 8.0 / static_cast<double>(bytes.elements), 4.0);
  EXPECT_GT(bytes.packed_elements, bytes.elements * 9 / 10);
}

TEST(LayerCache, DenseSidesNeverPack) {
  Fixture f(spec_of("kivi2/dense", 0, 0));
  f.write_range(0, 128);
  EXPECT_EQ(f.cache.keys().packed_mask(0), ~uint64_t{0});
  EXPECT_EQ(f.cache.values().packed_mask(0), 0u);
  EXPECT_EQ(f.cache.values().dense_mask(0), ~uint64_t{0});
}

// --- nib: heads whose packed blocks have unlike sizes

using Doubles = std::vector<double>;

// The row of one head.
Doubles head_row(const std::vector<Half>& rows, size_t t, int h) {
  Doubles out;
  for (int c = 0; c < kDim; ++c) {
    out.push_back(half_to_float(rows[t * kWidth + static_cast<size_t>(h * kDim + c)]));
  }
  return out;
}

// Packed bytes of all heads of a block of keys.
std::vector<uint8_t> key_codes(const Fixture& f, size_t block) {
  std::vector<uint8_t> out;
  for (int h = 0; h < kHeads; ++h) {
    const uint8_t* codes = f.cache.keys().packed(block, h);
    out.insert(out.end(), codes, codes + f.cache.keys().codec(h).layout().bytes());
  }
  return out;
}

TEST(LayerCacheNib, EachHeadIsCodedByItsOwnCode) {
  Fixture f(spec_of("nib2/nib1.5", 0, 0));
  f.write_range(0, 128);
  const std::vector<float> written = oracle::normal_rows(128, kWidth, 1);
  const std::vector<Half> keys = f.keys(0, 128);
  std::vector<Half> values(128 * kWidth);
  f.cache.get_values(0, 128, values.data());
  ASSERT_EQ(f.cache.keys().packed_mask(1), ~uint64_t{0});
  for (int h = 0; h < kHeads; ++h) {
    const HeadProfile& head = f.profile.heads[static_cast<size_t>(h)];
    const oracle::Nib k = testing::oracle_nib(head.key_nib), v = testing::oracle_nib(head.value_nib);
    for (size_t t : {0, 31, 32, 63, 64, 127}) {
      Doubles row;
      for (int c = 0; c < kDim; ++c) {
        row.push_back(oracle::as_half(written[t * kWidth + static_cast<size_t>(h * kDim + c)]));
      }
      // Read back as f16.
      EXPECT_TRUE(oracle::close(head_row(keys, t, h), oracle::nib_row(k, row), 4e-3)) << h << " " << t;
      EXPECT_TRUE(oracle::close(head_row(values, t, h), oracle::nib_row(v, row), 4e-3)) << h << " " << t;
      EXPECT_FALSE(oracle::close(head_row(keys, t, h), row, 4e-3)) << "it is not packed";
    }
  }
}

TEST(LayerCacheNib, PackedBytesAreTheNibblesOfTheHeads) {
  Fixture f(spec_of("nib2/nib1.5", 0, 0));
  f.write_range(0, 128);
  size_t nibbles = 0;
  for (const HeadProfile& head : f.profile.heads) {
    nibbles += static_cast<size_t>(head.key_nib.n_nibbles() + head.value_nib.n_nibbles());
  }
  EXPECT_NE(f.profile.heads[0].key_nib.n_nibbles(), f.profile.heads[1].key_nib.n_nibbles());
  EXPECT_EQ(f.cache.bytes().packed, 2 * nibbles * kBlockTokens / 2);
}

TEST(LayerCacheNib, SavedRowsComeBackWithTheSameCodes) {
  Fixture f(spec_of("nib2/nib1.5", 32, 4)), g(spec_of("nib2/nib1.5", 32, 4));
  f.write_range(0, 200, 0);
  const std::vector<Half> keys = f.keys(0, 200);
  std::vector<Half> values(200 * kWidth), again(200 * kWidth);
  f.cache.get_values(0, 200, values.data());
  g.cache.set_keys(0, 200, keys.data(), 1);
  g.cache.set_values(0, 200, values.data(), 1);
  for (size_t block : {0, 1}) {
    ASSERT_EQ(g.cache.keys().packed_mask(block), f.cache.keys().packed_mask(block));
    EXPECT_EQ(key_codes(g, block), key_codes(f, block));
  }
  g.cache.get_values(0, 200, again.data());
  EXPECT_EQ(again, values);
  EXPECT_EQ(g.keys(0, 200), keys);
}

TEST(LayerCacheNib, CopiedStreamsAreEqualAndIndependent) {
  Fixture f(spec_of("nib2/nib1.5", 32, 4), 128, 2);
  f.write_range(0, 110, 0);
  f.cache.copy_keys(f.cache, 0, 1);
  f.cache.copy_values(f.cache, 0, 1);
  EXPECT_EQ(f.keys(0, 128), f.keys(128, 128));
  ASSERT_NE(f.cache.keys().packed_mask(2), 0u);
  EXPECT_EQ(key_codes(f, 2), key_codes(f, 0));
  const std::vector<Half> source = f.keys(0, 128);
  f.write({128 + 10});
  EXPECT_EQ(f.keys(0, 128), source);
  EXPECT_NE(f.keys(128, 128), source);
}

TEST(LayerCacheNib, AnOverwrittenCellLeavesTheCodesOfTheOthers) {
  Fixture f(spec_of("nib2/nib1.5", 16, 0));
  f.write_range(0, 128);
  const std::vector<Half> before = f.keys(0, 64);
  f.write({10});
  f.write_range(128, 128 + 16);  // old enough to be packed anew
  ASSERT_EQ(f.cache.keys().packed_mask(0), ~uint64_t{0});
  const std::vector<Half> after = f.keys(0, 64);
  for (size_t t = 0; t < 64; ++t) {  // rows are coded alone, so not even a bit changes
    EXPECT_EQ(std::memcmp(&after[t * kWidth], &before[t * kWidth], kWidth * sizeof(Half)) == 0, t != 10) << t;
  }
}

TEST(LayerCacheNib, RewrittenKeysAreCodedAgain) {
  Fixture f(spec_of("nib2/dense", 32, 4));
  f.write_range(0, 110, 0);
  const std::vector<Half> before = f.keys(0, 110);
  f.cache.rewrite_keys([](int64_t cell) { return cell >= 20 && cell < 110; },
                       [](std::span<const int64_t> cells, float* rows) {
                         for (size_t i = 0; i < cells.size() * kWidth; ++i) rows[i] = -rows[i];
                       },
                       1);
  const std::vector<Half> after = f.keys(0, 110);
  for (int h = 0; h < kHeads; ++h) {
    const oracle::Nib code = testing::oracle_nib(f.profile.heads[static_cast<size_t>(h)].key_nib);
    for (size_t t : {5, 19, 20, 63, 70}) {
      Doubles wanted = head_row(before, t, h);
      if (t >= 20) {
        for (double& x : wanted) x = -x;
      }
      if (t >= 20 && t < 64) wanted = oracle::nib_row(code, wanted);
      EXPECT_TRUE(oracle::close(head_row(after, t, h), wanted, 4e-3)) << h << " " << t;
    }
  }
}

TEST(LayerCacheNib, AnotherRateThanTheProfilesIsRefused) {
  const Profile profile = testing::nib_profile(kShape, "nib2/nib1.5");
  DensePool pool;
  for (const char* kv : {"nib2/nib2", "nib2.5/nib1.5", "nib2@random/nib1.5"}) {
    EXPECT_ERROR(LayerCache(0, kShape, spec_of(kv), &profile, 64, 1, pool), ErrorCode::kMismatch,
                 profile.why_lacks(KvSpec::parse(kv)));
  }
  EXPECT_ERROR(LayerCache(0, kShape, spec_of("nib2"), nullptr, 64, 1, pool),
               ErrorCode::kInvalidArgument, "needs a profile");
  EXPECT_NO_THROW(LayerCache(0, kShape, spec_of("nib2-last4/nib1.5"), &profile, 64, 1, pool));
}

TEST(LayerCache, AProfileOfAnotherShapeIsRefused) {
  Profile profile;
  profile.n_basis = 16;
  profile.layer_ids = {0};
  profile.shapes = {{.n_head_kv = 1, .d_k = kDim, .d_v = kDim}};
  profile.heads.resize(1);
  DensePool pool;
  const LayerShape shape{.n_head_kv = kHeads, .d_k = kDim, .d_v = kDim};
  EXPECT_THROW(LayerCache(0, shape, spec_of("kivi2"), &profile, 64, 1, pool), std::exception);
  EXPECT_THROW(LayerCache(1, shape, spec_of("kivi2"), &profile, 64, 1, pool), std::exception);
}

// Adds attention paid to cells of a block, the same for both heads.
void pay(LayerCache& cache, int block, uint64_t cells, float amount) {
  for (int h = 0; h < kHeads; ++h) {
    float* paid = cache.paid_to(0, block, h);
    ASSERT_NE(paid, nullptr);
    for (int t = 0; t < kBlockTokens; ++t) {
      if ((cells >> t & 1) != 0) paid[t] += amount;
    }
  }
}

uint64_t refined(const LayerCache& cache, size_t block, int head) {
  return cache.values().codec(head).refined(cache.values().packed(block, head));
}

constexpr uint64_t kOdd16 = 0xaaaaaaaa;  // 16 cells

TEST(LayerCache, ValuesWaitForTheAttentionPaidToThem) {
  Fixture f(spec_of("kivi2/kivi2+a2", 32, 0));
  f.write_range(0, 70);
  EXPECT_EQ(f.cache.waiting_blocks(0), (std::vector<int>{0, 1}));
  EXPECT_EQ(f.cache.next_paid_from(0), 64u + 32);
  pay(f.cache, 0, kOdd16, 1.0f);
  f.write_range(70, 95);
  EXPECT_EQ(f.cache.values().packed_mask(0), 0u);

  const std::vector<float> rows = oracle::normal_rows(1, kWidth, 77);
  f.cache.write_keys(std::vector<int64_t>{95}, rows.data(), kWidth);
  f.cache.write_values(std::vector<int64_t>{95}, rows.data(), kWidth);
  f.cache.prepare(std::vector<uint8_t>{0}, 1);
  EXPECT_EQ(f.cache.keys().packed_mask(0), ~uint64_t{0});
  EXPECT_EQ(f.cache.values().packed_mask(0), 0u);
  f.cache.code_paid(0, 95, 1);  // a row too early
  EXPECT_EQ(f.cache.values().packed_mask(0), 0u);
  f.cache.code_paid(0, 96, 2);
  f.cache.finish_read();
  EXPECT_EQ(f.cache.values().packed_mask(0), ~uint64_t{0});
  EXPECT_EQ(f.cache.values().dense_mask(0), 0u);
  for (int h = 0; h < kHeads; ++h) EXPECT_EQ(refined(f.cache, 0, h), kOdd16);
  EXPECT_EQ(f.cache.paid_to(0, 0, 0), nullptr);
  EXPECT_EQ(f.cache.waiting_blocks(0), (std::vector<int>{1}));
}

TEST(LayerCache, ARowThatIsOverwrittenStartsUnpaid) {
  Fixture f(spec_of("kivi2/kivi2+a2", 32, 0));
  f.write_range(0, 64);
  pay(f.cache, 0, kOdd16 | 1, 1.0f);  // 17 cells
  f.write({1});
  f.write_range(64, 128);
  EXPECT_EQ(refined(f.cache, 0, 0), (kOdd16 | 1) & ~uint64_t{2});
}

TEST(LayerCache, AttentionPaidGoesWithACopyAndWithErasedRows) {
  Fixture f(spec_of("kivi2/kivi2+a2", 32, 0), 128, 2);
  f.write_range(0, 64);
  pay(f.cache, 0, kOdd16, 1.0f);
  f.cache.copy_keys(f.cache, 0, 1);
  f.cache.copy_values(f.cache, 0, 1);
  EXPECT_EQ(f.cache.waiting_blocks(1), (std::vector<int>{0}));
  f.cache.erase_keys(0, 64);
  f.cache.erase_values(0, 64);
  EXPECT_EQ(f.cache.paid_to(0, 0, 0), nullptr);
  f.write_range(128 + 64, 256);
  EXPECT_EQ(refined(f.cache, 2, 1), kOdd16);
}

TEST(LayerCache, AttentionPaidIsCountedWhileItIsKeptAndFreeForOthers) {
  Fixture plain(spec_of("kivi2/kivi2+a2@random", 32, 0)), f(spec_of("kivi2/kivi2+a2", 32, 0));
  EXPECT_FALSE(plain.cache.wants_paid());
  EXPECT_EQ(plain.cache.paid_to(0, 0, 0), nullptr);
  const size_t pointers = 4 * sizeof(void*);  // of 4 blocks
  EXPECT_EQ(f.cache.bytes().meta, plain.cache.bytes().meta + pointers);
  plain.write_range(0, 70);
  f.write_range(0, 70);
  const size_t one = kHeads * kBlockTokens * sizeof(float);
  EXPECT_EQ(f.cache.bytes().meta, plain.cache.bytes().meta + pointers + 2 * one);
  f.write_range(70, 100);
  EXPECT_EQ(f.cache.bytes().meta, plain.cache.bytes().meta + pointers + one);
  f.cache.clear();
  EXPECT_EQ(f.cache.bytes().meta, plain.cache.bytes().meta + pointers);
}

TEST(LayerCache, RestoredValuesAreRefinedAsTheyWere) {
  Fixture f(spec_of("kivi2/kivi2+a2", 32, 0)), g(spec_of("kivi2/kivi2+a2", 32, 0));
  f.write_range(0, 64);
  pay(f.cache, 0, kOdd16, 1.0f);
  f.write_range(64, 200);
  std::vector<Half> keys = f.keys(0, 200), values(200 * kWidth);
  f.cache.get_values(0, 200, values.data());
  g.cache.set_keys(0, 200, keys.data(), 1);
  g.cache.set_values(0, 200, values.data(), 1);
  ASSERT_NE(g.cache.values().packed_mask(0), 0u);
  for (size_t block : {0, 1}) {
    for (int h = 0; h < kHeads; ++h) EXPECT_EQ(refined(g.cache, block, h), refined(f.cache, block, h));
  }
}

}  // namespace
}  // namespace headq
