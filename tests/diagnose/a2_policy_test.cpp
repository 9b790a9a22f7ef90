// Experiment 7 on planted attention, where the right answer is known in closed form.

#include "diagnose/a2_policy.h"

#include <gtest/gtest.h>

#include <cmath>

#include "diagnose/planted.h"
#include "oracle/attention.h"
#include "oracle/compare.h"
#include "oracle/rows.h"

namespace headq {
namespace {

using testing::planted_head;

constexpr size_t kBase = 0, kUniform = 1, kRandom = 2, kPaid = 3, kOracle = 4;
constexpr int kD = 64;
constexpr int kTokens = 256;

// Where all attention of the first queries goes, and that of those from `turn` on.
struct Plan {
  int first = 20;
  int second = 20;
  int turn = kTokens;
};

// Every value is 15 times 0..15, over and over: 16 steps hold it exactly, 6 steps are off by one step
// of 15 in ten channels of sixteen, 4 steps by one in six and by two in six.
HeadSample one_token_head(const Plan& plan) {
  HeadSample sample;
  sample.d_k = sample.d_v = kD;
  SampleChunk chunk;
  chunk.n_tokens = kTokens;
  chunk.k.assign(kTokens * kD, 0.0f);
  chunk.k[static_cast<size_t>(plan.first * kD)] += 200.0f;
  chunk.k[static_cast<size_t>(plan.second * kD) + 1] += 200.0f;
  for (int i = 0; i < kTokens * kD; ++i) chunk.v.push_back(15.0f * static_cast<float>(i % 16));
  std::vector<float> q(kTokens * kD, 0.0f);
  for (int i = 0; i < kTokens; ++i) q[static_cast<size_t>(i * kD) + (i >= plan.turn ? 1 : 0)] = 1.0f;
  for (int position : {200, 220, 255}) {
    chunk.queries.push_back({0, 0, position, (position + 1 - 32) / 64 * 64});
    chunk.q.insert(chunk.q.end(), q.begin() + position * kD, q.begin() + (position + 1) * kD);
  }
  const std::vector<int> first(kTokens, 0);
  add_paid_attention({.n_tokens = kTokens, .d = kD, .q = q, .k = chunk.k, .first = first}, chunk.paid);
  sample.chunks.push_back(std::move(chunk));
  return sample;
}

constexpr double kFourSteps = 15.0 * 15.0 * (6 + 6 * 4) / 16;
constexpr double kSixSteps = 15.0 * 15.0 * 10 / 16;

A2PolicyHead study(const HeadSample& sample) { return a2_policy_head(DenseAttention(sample)); }

TEST(A2Policy, OneTokenWithAllAttentionIsTheOneThatIsRefined) {
  const HeadSample sample = one_token_head({});
  const A2PolicyHead head = study(sample);
  for (auto figure : {&PolicyFigures::output_error, &PolicyFigures::a2_error}) {
    EXPECT_NEAR(head.policies[kBase].*figure, kFourSteps, 1e-9);
    EXPECT_NEAR(head.policies[kUniform].*figure, kSixSteps, 1e-9);
    EXPECT_NEAR(head.policies[kPaid].*figure, 0.0, 1e-12);
    EXPECT_NEAR(head.policies[kOracle].*figure, 0.0, 1e-12);
  }
  EXPECT_NEAR(head.policies[kPaid].captured, 1.0, 1e-12);
  EXPECT_NEAR(head.policies[kOracle].captured, 1.0, 1e-12);
  EXPECT_TRUE(std::isnan(head.policies[kBase].captured));
  // A quarter of the rows has 16 steps whichever these are; the sinks are not coded.
  const double refined = 3.0 * 16 / (3 * 64 - 4);
  EXPECT_NEAR(head.policies[kBase].mse, kFourSteps, 1e-9);
  for (size_t policy : {kRandom, kPaid, kOracle}) {
    EXPECT_NEAR(head.policies[policy].mse, (1 - refined) * kFourSteps, 1e-9);
  }
}

TEST(A2Policy, WhatIsAttendedToOnlyLaterIsTheOraclesToKnow) {
  // All queries look at token 50 until its block is coded, at token 40 from then on.
  const A2PolicyHead head = study(one_token_head({.first = 50, .second = 40, .turn = 64 + 31}));
  EXPECT_NEAR(head.policies[kPaid].output_error, kFourSteps, 1e-9);
  EXPECT_NEAR(head.policies[kPaid].captured, 0.0, 1e-12);
  EXPECT_NEAR(head.policies[kOracle].output_error, 0.0, 1e-12);
  EXPECT_NEAR(head.policies[kOracle].captured, 1.0, 1e-12);
  // One query earlier, and it is known.
  const A2PolicyHead known = study(one_token_head({.first = 50, .second = 40, .turn = 64 + 30}));
  EXPECT_NEAR(known.policies[kPaid].output_error, 0.0, 1e-12);
}

TEST(A2Policy, RandomTokensCatchAQuarterOfTheAttention) {
  double refined = 0;
  constexpr int kHeads = 120;
  for (int h = 0; h < kHeads; ++h) {
    HeadSample sample = one_token_head({});
    // Rows differ from head to head, their ranges do not.
    const std::vector<float> noise = oracle::normal_rows(kTokens, 1, static_cast<uint64_t>(h));
    for (int t = 0; t < kTokens; ++t) {
      if (noise[static_cast<size_t>(t)] > 0) sample.chunks[0].v[static_cast<size_t>(t * kD)] = 15.0f;
    }
    const double captured = study(sample).policies[kRandom].captured;
    EXPECT_TRUE(captured < 1e-6 || captured > 1 - 1e-6);
    refined += captured > 0.5 ? 1 : 0;
  }
  EXPECT_NEAR(refined / kHeads, 0.25, 4 * std::sqrt(0.25 * 0.75 / kHeads));
}

TEST(A2Policy, EvenAttentionLeavesNothingToChoose) {
  // Queries of zeros see all tokens alike: which ones are refined makes next to no difference to the
  // A^2 error, and giving all the same is better.
  HeadSample sample = planted_head({.n_tokens = 320, .d = kD, .query_size = 0});
  const A2PolicyHead head = study(sample);
  EXPECT_NEAR(head.policies[kPaid].a2_error / head.policies[kRandom].a2_error, 1.0, 0.03);
  EXPECT_NEAR(head.policies[kPaid].captured, 0.25, 0.01);
  EXPECT_LT(head.policies[kUniform].a2_error, 0.6 * head.policies[kPaid].a2_error);
}

TEST(A2Policy, PoliciesAreComparedAtEqualBits) {
  const A2PolicyHead head = study(one_token_head({}));
  EXPECT_DOUBLE_EQ(head.policies[kBase].bits, 2.5);
  EXPECT_DOUBLE_EQ(head.policies[kUniform].bits, 0.5 + std::log2(6.0));
  for (size_t policy : {kRandom, kPaid, kOracle}) EXPECT_DOUBLE_EQ(head.policies[policy].bits, 3.015625);
  EXPECT_GE(head.policies[kUniform].bits, head.policies[kPaid].bits);
}

TEST(A2Policy, RatiosAreGeometricMeansOverHeads) {
  std::vector<A2PolicyHead> heads(8);
  for (size_t h = 0; h < heads.size(); ++h) {
    for (size_t i = 0; i < kValuePolicies.size(); ++i) {
      PolicyFigures& figures = heads[h].policies[i];
      figures.bits = 3;
      figures.mse = 1;
      figures.output_error = static_cast<double>(h + 1);
      figures.a2_error = static_cast<double>(h + 1);
      figures.captured = i >= kRandom ? 0.2 * static_cast<double>(i) : kNoValue;
    }
    heads[h].policies[kPaid].output_error *= h % 2 == 0 ? 0.5 : 0.125;   // 0.25 of the base
    heads[h].policies[kUniform].output_error *= h % 2 == 0 ? 2.0 : 0.03125;  // also 0.25
    heads[h].policies[kOracle].a2_error *= 0.1;
  }
  const A2Policy found = a2_policy(heads, {.n_replicates = 200});
  EXPECT_EQ(found.n_heads, 8u);
  ASSERT_EQ(found.rows.size(), kValuePolicies.size());
  EXPECT_NEAR(found.rows[kPaid].output_ratio.value, 0.25, 1e-12);
  EXPECT_LT(found.rows[kPaid].output_ratio.low, 0.25);
  EXPECT_GT(found.rows[kPaid].output_ratio.high, 0.25);
  EXPECT_NEAR(found.rows[kOracle].a2_ratio.value, 0.1, 1e-12);
  EXPECT_NEAR(found.rows[kOracle].a2_ratio.low, 0.1, 1e-12);
  EXPECT_NEAR(found.rows[kBase].output_ratio.high, 1.0, 1e-12);
  EXPECT_NEAR(found.rows[kPaid].output_error.value, (0.5 * (1 + 3 + 5 + 7) + 0.125 * (2 + 4 + 6 + 8)) / 8, 1e-12);
  EXPECT_NEAR(found.rows[kPaid].captured.value, 0.6, 1e-12);
  EXPECT_TRUE(std::isnan(found.rows[kUniform].captured.value));
  ASSERT_EQ(found.paid_over.size(), 3u);
  EXPECT_EQ(found.paid_over[0].other, ValuePolicy::kUniform);
  EXPECT_NEAR(found.paid_over[0].ratio.value, 1.0, 1e-12);
  EXPECT_LT(found.paid_over[0].ratio.low, 1.0);
  EXPECT_NEAR(found.paid_over[0].wins.value, 0.5, 1e-12);
  EXPECT_EQ(found.paid_over[1].other, ValuePolicy::kRandom);
  EXPECT_NEAR(found.paid_over[1].ratio.value, 0.25, 1e-12);
  EXPECT_NEAR(found.paid_over[1].wins.value, 1.0, 1e-12);
  EXPECT_EQ(found.paid_over[2].other, ValuePolicy::kOracle);
  EXPECT_NEAR(found.paid_over[2].ratio.value, 0.25, 1e-12);
}

TEST(PaidAttention, SumsTheSquaresOfTheQueriesBeforeAndAfterABlockIsCoded) {
  constexpr int kN = 200, kDim = 16, kWindow = 20;
  const std::vector<float> k = oracle::normal_rows(kN, kDim, 1);
  std::vector<int> first(kN);
  for (int i = 0; i < kN; ++i) first[static_cast<size_t>(i)] = std::max(0, i - 149);  // a sliding window
  PaidAttention paid;
  std::vector<double> early(kN), later(kN);
  oracle::Head seen;
  for (int t = 0; t < kN; ++t) seen.keys.emplace_back(k.begin() + t * kDim, k.begin() + (t + 1) * kDim);
  for (uint64_t head : {2u, 3u}) {
    const std::vector<float> q = oracle::normal_rows(kN, kDim, head);
    add_paid_attention({.n_tokens = kN, .d = kDim, .scale = 0.5f, .softcap = 4, .window = kWindow, .q = q, .k = k, .first = first}, paid);
    for (int i = 0; i < kN; ++i) {
      std::vector<double> mask;
      for (int t = 0; t < kN; ++t) mask.push_back(t <= i && t >= first[static_cast<size_t>(i)] ? 0.0 : -INFINITY);
      const std::vector<double> p = oracle::weights({q.begin() + i * kDim, q.begin() + (i + 1) * kDim}, seen, mask,
                                                    {.scale = 0.5, .softcap = 4});
      for (int t = 0; t <= i; ++t) {
        const bool packed = i >= t / 64 * 64 + 63 + kWindow;
        (packed ? later : early)[static_cast<size_t>(t)] += p[static_cast<size_t>(t)] * p[static_cast<size_t>(t)];
      }
    }
  }
  EXPECT_TRUE(oracle::close(paid.early, early, 1e-5));
  EXPECT_TRUE(oracle::close(paid.later, later, 1e-5));
  EXPECT_FALSE(oracle::close(paid.early, later, 1e-2));
}

}  // namespace
}  // namespace headq
