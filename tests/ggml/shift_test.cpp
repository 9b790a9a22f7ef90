// Context shift: cells are removed and the rest moves to smaller positions, which rotates cached
// keys in place.
#include <gtest/gtest.h>

#include "ggml/compare.h"
#include "ggml/families.h"
#include "ggml/session.h"

namespace headq::testing {
namespace {

constexpr int kTokens = 200;
constexpr int kKept = 4;      // first positions that stay
constexpr int kDropped = 90;  // positions after them that go

// Logits of 30 tokens after `n_shifts` shifts, half of them decoded one by one.
Logits shift_and_decode(const Model& model, SessionConfig config, int n_shifts = 1) {
  config.swa_full = true;  // llama.cpp shifts window caches of full size only
  Session session(model, config);
  session.decode(tiny_tokens(kTokens, 1));
  int end = kTokens;
  for (int i = 0; i < n_shifts; ++i) {
    const int dropped = kDropped / n_shifts;
    EXPECT_TRUE(llama_memory_can_shift(session.memory()));
    EXPECT_TRUE(llama_memory_seq_rm(session.memory(), 0, kKept, kKept + dropped));
    llama_memory_seq_add(session.memory(), 0, kKept + dropped, end, -dropped);
    end -= dropped;
    if (i + 1 < n_shifts) end += session.decode(tiny_tokens(1, 50 + i), end).n_rows();
  }
  const std::vector<int32_t> next = tiny_tokens(30, 2);
  Logits out = session.decode(std::span(next).first(15), end);
  out.append(session.decode_one_by_one(std::span(next).subspan(15), end + 15));
  return out;
}

using ShiftFamily = EachFamily;
HEADQ_FOR_EACH_FAMILY(ShiftFamily);

TEST_P(ShiftFamily, DenseRowsAreAsNearToF32AsTheCpuBackends) {
  const TinyModelConfig config{.family = GetParam(), .n_swa = 120};
  const Model cpu(config, Backend::kCpu);
  const Model model(config, Backend::kHeadq);
  const Logits exact = shift_and_decode(cpu, {.type_kv = GGML_TYPE_F32, .flash_attn = false});
  const double cpu_error = relative_error(exact, shift_and_decode(cpu, {}));
  const double error = relative_error(exact, shift_and_decode(model, {}));
  EXPECT_LE(error, 1.1 * cpu_error);
  EXPECT_LE(error, 2e-3);
}

TEST_P(ShiftFamily, PackedRowsFollow) {
  const TinyModelConfig config{.family = GetParam(), .n_swa = 120};
  const Model model(config, Backend::kHeadq);
  const Logits dense = shift_and_decode(model, {});
  const double kivi8 = mean_kld(dense, shift_and_decode(model, {.kv = "kivi8"}));
  const double kivi4 = mean_kld(dense, shift_and_decode(model, {.kv = "kivi4"}));
  EXPECT_LE(kivi8, 3e-4);
  EXPECT_LE(kivi8, 0.3 * kivi4);
  for (const char* kv : {"kivi2", "token2h", "kivi2+hq4x4@random"}) {
    const Logits coarse = shift_and_decode(model, {.kv = kv});
    EXPECT_TRUE(all_finite(coarse)) << kv;
    EXPECT_LT(mean_kld(dense, coarse), 3.0) << kv;
  }
}

TEST_P(ShiftFamily, ManyShiftsStayNear) {
  const TinyModelConfig config{.family = GetParam(), .n_swa = 120};
  const Model cpu(config, Backend::kCpu);
  const Model model(config, Backend::kHeadq);
  const Logits exact = shift_and_decode(cpu, {.type_kv = GGML_TYPE_F32, .flash_attn = false}, 9);
  EXPECT_LE(relative_error(exact, shift_and_decode(model, {}, 9)), 4e-3);
  const Logits dense = shift_and_decode(model, {}, 9);
  EXPECT_LE(mean_kld(dense, shift_and_decode(model, {.kv = "kivi8"}, 9)), 1e-3);
}

}  // namespace
}  // namespace headq::testing
