#include "calibrate/attention_stats.h"

#include <gtest/gtest.h>

#include <cmath>

#include "oracle/rows.h"

namespace headq {
namespace {

constexpr int kRows = 37;
constexpr int kDim = 20;

struct Chunk {
  std::vector<float> q = oracle::normal_rows(kRows, kDim, 1);
  std::vector<float> k = oracle::normal_rows(kRows, kDim, 2);
  std::vector<float> columns;  // [kDim][48]
  std::vector<float> mask;

  Chunk() : columns(kDim * 48, 0.0f) {
    for (int i = 0; i < kRows; ++i) {
      for (int c = 0; c < kDim; ++c) {
        columns[static_cast<size_t>(c * 48 + i)] = k[static_cast<size_t>(i * kDim + c)];
      }
    }
  }

  HeadAttention head() const {
    return {.n_rows = kRows, .d = kDim, .scale = 0.4f, .q = q.data(), .q_stride = kDim,
            .k_columns = columns.data(), .n_padded = 48, .mask = mask};
  }
};

// The same sums from their definition, in double.
struct Naive {
  std::vector<double> query_fisher, key_weight, value_weight;

  Naive(const HeadAttention& head, const Chunk& chunk, int sinks, int lag)
      : query_fisher(kRows), key_weight(kRows), value_weight(kRows) {
    // Four queries take part, the next four do not.
    for (int i = sinks + lag; i < kRows; ++i) {
      if ((i - sinks - lag) % 8 >= 4) continue;
      std::vector<double> p(kRows, 0.0);
      double sum = 0.0;
      for (int j = 0; j < kRows; ++j) {
        const double m = head.mask.empty() ? (j <= i ? 0.0 : -INFINITY)
                                           : head.mask[static_cast<size_t>(i * kRows + j)];
        if (m == -INFINITY) continue;
        double s = 0.0;
        for (int c = 0; c < kDim; ++c) {
          s += static_cast<double>(chunk.q[static_cast<size_t>(i * kDim + c)]) *
               chunk.k[static_cast<size_t>(j * kDim + c)];
        }
        s *= head.scale;
        if (head.softcap != 0.0f) s = head.softcap * std::tanh(s / head.softcap);
        sum += p[static_cast<size_t>(j)] = std::exp(s + head.slope * m);
      }
      for (int j = sinks; j <= i - lag; ++j) {
        const size_t a = static_cast<size_t>(i), b = static_cast<size_t>(j);
        const double x = p[b] / sum;
        query_fisher[a] += x * (1 - x);
        key_weight[b] += x * (1 - x);
        value_weight[b] += x * x;
      }
    }
  }
};

void expect_near(const std::vector<float>& got, const std::vector<double>& wanted) {
  ASSERT_EQ(got.size(), wanted.size());
  for (size_t i = 0; i < got.size(); ++i) EXPECT_NEAR(got[i], wanted[i], 2e-6 * (1 + wanted[i])) << i;
}

void expect_like_naive(const HeadAttention& head, const Chunk& chunk, int sinks, int lag) {
  const AttentionStats stats(head, sinks, lag);
  const Naive naive(head, chunk, sinks, lag);
  expect_near(stats.query_fisher, naive.query_fisher);
  expect_near(stats.key_weight, naive.key_weight);
  expect_near(stats.value_weight, naive.value_weight);
}

TEST(AttentionStats, SumsOverPackedTokensAlone) {
  const Chunk chunk;
  expect_like_naive(chunk.head(), chunk, 0, 0);
  expect_like_naive(chunk.head(), chunk, 4, 8);
  expect_like_naive(chunk.head(), chunk, 0, kRows);  // all of them are read dense
}

TEST(AttentionStats, TakesMaskSoftcapAndSlope) {
  Chunk chunk;
  for (int i = 0; i < kRows; ++i) {  // a sliding window of 10, with the distance as a bias
    for (int j = 0; j < kRows; ++j) {
      chunk.mask.push_back(j <= i && j > i - 10 ? static_cast<float>(j - i) : -INFINITY);
    }
  }
  HeadAttention head = chunk.head();
  head.slope = 0.25f;
  expect_like_naive(head, chunk, 2, 3);
  head.softcap = 1.5f;
  expect_like_naive(head, chunk, 2, 3);
}

// A query whose softmax is decided feels no error of any score, and all of its token's value.
TEST(AttentionStats, ADecidedQueryHasNoFisherWeight) {
  Chunk chunk;
  for (int i = 0; i < kRows; ++i) {  // token 5 takes all
    for (int c = 0; c < kDim; ++c) {
      const size_t at = static_cast<size_t>(i * kDim + c);
      chunk.q[at] = 1.0f;
      chunk.columns[static_cast<size_t>(c * 48 + i)] = chunk.k[at] = i == 5 ? 10.0f : 0.0f;
    }
  }
  const AttentionStats stats(chunk.head(), 0, 0);
  int n_queries = 0;  // that see token 5 and take part
  for (int i = 5; i < kRows; ++i) {
    if (i % 8 >= 4) continue;
    ++n_queries;
    EXPECT_NEAR(stats.query_fisher[static_cast<size_t>(i)], 0.0f, 1e-6f);
  }
  EXPECT_NEAR(stats.value_weight[5], n_queries, 1e-4f);
  EXPECT_NEAR(stats.key_weight[5], 0.0f, 1e-4f);
}

}  // namespace
}  // namespace headq
