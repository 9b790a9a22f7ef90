#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "attention/attention.h"
#include "attention/dispatch.h"
#include "codec/nib_profile.h"
#include "oracle/rows.h"

namespace {

std::atomic<size_t> allocations{0};

}  // namespace

// Counts for the whole program; std::vector, std::map and make_unique all come here.
void* operator new(size_t n) {
  ++allocations;
  if (void* memory = std::malloc(n)) return memory;
  throw std::bad_alloc();
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, size_t) noexcept { std::free(memory); }

namespace headq {
namespace {

constexpr LayerShape kShape{.n_head_kv = 2, .d_k = 64, .d_v = 64};
constexpr int kHeads = 4, kTokens = 1300;  // past the first piece

// One token at a time: only where a block begins or is coded may memory be taken.
TEST(Allocation, NoTokenOfDecodingAllocates) {
  for (const char* kv : {"nib2/nib2", "kivi2+hq4x4@random/kivi2", "kivi4/dense"}) {
    CacheSpec spec;
    spec.kv = KvSpec::parse(kv);
    const Profile profile = testing::nib_profile(kShape, kv);
    DensePool pool;
    LayerCache cache(0, kShape, spec, spec.needs_profile() ? &profile : nullptr, 2 * kTokens, 1, pool);
    Attention attention(kernels_for(available_isas().back()));
    const std::vector<float> row = oracle::normal_rows(1, kShape.n_head_kv * kShape.d_k, 1);
    const std::vector<float> q = oracle::normal_rows(1, kHeads * kShape.d_k, 2);
    std::vector<float> out(static_cast<size_t>(kHeads * kShape.d_v));
    size_t n_quiet = 0;
    for (int64_t t = 0; t < kTokens; ++t) {
      AttentionInputs in;
      in.n_rows = 1;
      in.n_head = kHeads;
      in.n_kv = static_cast<int>(t / 256 + 1) * 256;  // as llama.cpp pads it
      in.scale = 0.125f;
      in.q = q.data();
      in.q_head = static_cast<size_t>(kShape.d_k);
      in.q_row = in.q_stream = q.size();
      in.out = out.data();
      std::vector<Half> mask(static_cast<size_t>(in.n_kv), float_to_half(-INFINITY));
      std::fill_n(mask.begin(), t + 1, Half{0});
      in.mask = mask.data();
      in.mask_row = mask.size();
      const size_t packed = cache.keys().packed_bytes(), before = allocations;
      cache.write_keys({&t, 1}, row.data(), row.size());
      cache.write_values({&t, 1}, row.data(), row.size());
      attention.run(cache, in, 1);
      const size_t taken = allocations - before;
      const bool moves = t % kBlockTokens == 0 || t % 256 == 0 || cache.keys().packed_bytes() != packed;
      if (moves) continue;
      ASSERT_EQ(taken, 0u) << kv << ", token " << t;
      ++n_quiet;
    }
    EXPECT_GT(n_quiet, static_cast<size_t>(kTokens) * 9 / 10);
    EXPECT_GT(cache.keys().packed_bytes(), 0u);
  }
}

}  // namespace
}  // namespace headq
