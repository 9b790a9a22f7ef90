// The packed cache is small in fact: the resident set of the process grows by what the statistics
// say, a fraction of the f16 cache that llama.cpp asks for.
#include <gtest/gtest.h>

#include <fstream>
#include <ostream>
#include <sstream>

#include "ggml/session.h"

namespace headq::testing {
namespace {

// VmRSS of this process in bytes.
double resident_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind("VmRSS:", 0) != 0) continue;
    double kib = 0.0;
    std::istringstream(line.substr(6)) >> kib;
    return 1024.0 * kib;
  }
  return 0.0;
}

// A large cache behind a small model.
constexpr int kLayers = 8;
constexpr int kHeads = 4;
constexpr int kHeadDim = 128;
const TinyModelConfig kLargeCache = {.family = TinyFamily::kLlama,
                                     .n_layer = kLayers,
                                     .n_head = kHeads,
                                     .n_head_kv = kHeads,
                                     .head_dim = kHeadDim,
                                     .n_embd = 64,
                                     .n_ff = 64,
                                     .n_ctx_train = 16384};

constexpr double elements(int n_tokens) { return 2.0 * kLayers * kHeads * kHeadDim * n_tokens; }

TEST(Resident, PackedCacheTakesAQuarterOfItsNominalSize) {
  constexpr int kTokens = 6144;
  const Model model(kLargeCache, Backend::kHeadq);
  Session session(model, {.kv = "kivi2", .n_ctx = 16384, .n_ubatch = 256});
  const std::vector<int32_t> tokens = tiny_tokens(kTokens, 1);
  session.feed(std::span(tokens).first(256));  // touches the compute buffers
  const double before = resident_bytes();
  ASSERT_GT(before, 0.0);
  session.feed(std::span(tokens).subspan(256, 4096), 256);
  session.feed(std::span(tokens).subspan(256 + 4096), 256 + 4096);
  const double growth = resident_bytes() - before;

  const double nominal = 2.0 * elements(kTokens);  // f16
  const headq_stats stats = session.stats();
  const double held =
      static_cast<double>(stats.packed_bytes + stats.dense_bytes + stats.meta_bytes);
  RecordProperty("growth_bytes", static_cast<int>(growth));
  EXPECT_EQ(stats.n_tokens, static_cast<uint64_t>(kTokens));
  EXPECT_EQ(stats.n_elements, static_cast<uint64_t>(elements(kTokens)));
  EXPECT_LE(growth, nominal / 4);
  EXPECT_GE(growth, 0.8 * held);
  const double true_bits = 8.0 * held / static_cast<double>(stats.n_elements);
  EXPECT_GE(true_bits, 2.5);
  EXPECT_LE(true_bits, 3.0);  // 160 dense rows of 6144 are 0.4 bits
}

TEST(Resident, DenseCacheTakesItsNominalSize) {
  // The measurement above would be worthless if it could not see a cache that is not packed.
  constexpr int kTokens = 2048;
  const Model model(kLargeCache, Backend::kHeadq);
  Session session(model, {.n_ctx = 16384, .n_ubatch = 256});
  session.feed(tiny_tokens(256, 1));
  const double before = resident_bytes();
  session.feed(tiny_tokens(kTokens - 256, 2), 256);
  EXPECT_GE(resident_bytes() - before, 0.8 * 2.0 * elements(kTokens - 256));
}

TEST(Resident, ReservedContextCostsNothing) {
  const Model model(kLargeCache, Backend::kHeadq);
  const Session small(model, {.kv = "kivi2", .n_ctx = 256, .n_ubatch = 64});
  const double before = resident_bytes();
  const Session large(model, {.kv = "kivi2", .n_ctx = 16384, .n_ubatch = 64});
  EXPECT_LE(resident_bytes() - before, 0.05 * 2.0 * elements(16384));
}

TEST(Resident, ClosedContextsGiveTheirMemoryBack) {
  const Model model(kLargeCache, Backend::kHeadq);
  double first = 0.0;
  for (int i = 0; i < 6; ++i) {
    Session session(model, {.n_ctx = 1024, .n_ubatch = 256});
    session.feed(tiny_tokens(1000, 1));
    if (i == 1) first = resident_bytes();
  }
  EXPECT_LE(resident_bytes() - first, 2.0 * elements(1000));  // four leaked caches would be more
}

struct SpecBits {
  const char* kv;
  double bits;  // of a packed element, keys and values averaged
};

std::ostream& operator<<(std::ostream& out, const SpecBits& spec) { return out << spec.kv; }

class PackedBits : public ::testing::TestWithParam<SpecBits> {};

// head_dim 128. kivi: b + 32/64. token: b + 32/32. Side code of rank 4 on keys: 4·4 bits per token
// and a 32-bit scale and zero per coefficient and block, over 128 channels.
INSTANTIATE_TEST_SUITE_P(Specs, PackedBits,
                         ::testing::Values(SpecBits{"kivi2", 2.5}, SpecBits{"kivi4", 4.5},
                                           SpecBits{"kivi8", 8.5}, SpecBits{"token2", 3.0},
                                           SpecBits{"token4h", 5.0}, SpecBits{"kivi2/kivi4", 3.5}),
                         [](const auto& info) {
                           std::string name = info.param.kv;
                           for (char& c : name) c = c == '/' ? '_' : c;
                           return name;
                         });

TEST_P(PackedBits, AreWhatTheSpecSays) {
  const Model model(kLargeCache, Backend::kHeadq);
  Session session(model, {.kv = GetParam().kv, .sinks = 0, .n_ctx = 1024, .n_ubatch = 256});
  session.feed(tiny_tokens(1000, 1));
  const headq_stats stats = session.stats();
  ASSERT_GT(stats.packed_elements, 0u);
  EXPECT_NEAR(8.0 * stats.packed_bytes / stats.packed_elements, GetParam().bits, 1e-9);
}

TEST(Statistics, PackedPartFollowsTheHorizon) {
  // 1000 rows, window 32: the blocks that end at least 32 rows before the last one are packed.
  const Model model(kLargeCache, Backend::kHeadq);
  Session session(model, {.kv = "kivi2", .sinks = 0, .n_ctx = 1024, .n_ubatch = 256});
  session.feed(tiny_tokens(1000, 1));
  const headq_stats stats = session.stats();
  EXPECT_EQ(stats.n_tokens, 1000u);
  EXPECT_EQ(stats.packed_elements, static_cast<uint64_t>(elements(960)));
  EXPECT_GE(stats.dense_bytes, static_cast<uint64_t>(2.0 * elements(40)));
}

TEST(Statistics, OfTwoConfigurationsAreTheirOwn) {
  const Model model({.family = TinyFamily::kLlama}, Backend::kHeadq);
  Session dense(model, {});
  dense.feed(tiny_tokens(100, 1));
  Session packed(model, {.kv = "kivi2"});
  packed.feed(tiny_tokens(200, 1));
  EXPECT_EQ(dense.stats().n_tokens, 100u);
  EXPECT_EQ(packed.stats().n_tokens, 200u);
  EXPECT_EQ(dense.stats().packed_elements, 0u);
  EXPECT_GT(packed.stats().packed_elements, 0u);
}

}  // namespace
}  // namespace headq::testing
