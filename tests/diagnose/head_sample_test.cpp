#include "diagnose/head_sample.h"

#include <gtest/gtest.h>

#include <cmath>
#include <numeric>
#include <vector>

#include "core/error_of.h"
#include "headq/error.h"

namespace headq {
namespace {

using Floats = std::vector<float>;

// What attention saw of 2 query heads on each of 2 KV heads; element i is i, so that rows tell
// where they come from.
struct Seen {
  int n = 256;
  int d = 4;
  Floats q, k, v, mask;

  explicit Seen(int n_rows, int window = 0) : n(n_rows) {
    const size_t rows = static_cast<size_t>(n);
    q.resize(rows * 4 * 4);
    k.resize(rows * 2 * 4);
    v.resize(rows * 2 * 4);
    for (Floats* x : {&q, &k, &v}) std::iota(x->begin(), x->end(), 0.0f);
    mask.assign(rows * rows, -INFINITY);
    for (int i = 0; i < n; ++i) {
      for (int j = window > 0 ? std::max(0, i - window + 1) : 0; j <= i; ++j) {
        mask[static_cast<size_t>(i * n + j)] = 0;
      }
    }
  }
  Observation observation(int layer) const {
    Observation o;
    o.layer = layer;
    o.n_rows = n;
    o.n_head = 4;
    o.n_head_kv = 2;
    o.d_k = o.d_v = d;
    o.scale = 0.5f;
    o.q = q;
    o.k = k;
    o.v = v;
    o.mask = mask;
    return o;
  }
};

TEST(HeadSampler, TakesRowsOfTheChosenHead) {
  const Seen seen(256);
  const std::vector<HeadId> heads = {{3, 1}};
  HeadSampler sampler(heads, {.n_queries = 4});
  sampler.observe(seen.observation(2));
  Observation capped = seen.observation(3);
  capped.softcap = 7;
  sampler.observe(capped);
  const std::vector<HeadSample> samples = sampler.take();
  ASSERT_EQ(samples.size(), 1u);
  const HeadSample& sample = samples[0];
  EXPECT_EQ(sample.layer, 3);
  EXPECT_EQ(sample.head, 1);
  EXPECT_EQ(sample.n_group, 2);
  EXPECT_EQ(sample.scale, 0.5f);
  EXPECT_EQ(sample.softcap, 7.0f);
  EXPECT_EQ(sample.n_queries(), 8u);
  const SampleChunk& chunk = sample.chunks[0];
  EXPECT_EQ(chunk.n_tokens, 256);
  EXPECT_EQ(chunk.k[0], 4.0f);  // row 0, head 1
  EXPECT_EQ(chunk.v[10 * 4], 10 * 8 + 4.0f);
  const SampleQuery& query = chunk.queries[3];
  EXPECT_EQ(query.position, 191);
  EXPECT_EQ(query.head, 1);
  EXPECT_EQ(chunk.q[3 * 4], 191 * 16 + 3 * 4.0f);  // query head 3 of the layer
}

TEST(HeadSampler, AttentionPaidIsThatOfAllQueriesOfTheGroup) {
  Seen seen(256, 100);
  for (float& x : seen.q) x = 0;  // even attention
  const std::vector<HeadId> heads = {{0, 1}};
  HeadSampler sampler(heads, {.n_queries = 4});
  sampler.observe(seen.observation(0));
  const PaidAttention paid = sampler.take()[0].chunks[0].paid;
  // Token t is seen by the 100 queries from itself on, by those of both heads, each with 1 / 100.
  for (int t = 100; t < 150; ++t) {
    const int n_early = t / 64 * 64 + 63 + 32 - t;  // queries before its block is read packed
    EXPECT_NEAR(paid.early[static_cast<size_t>(t)], 2e-4 * n_early, 1e-7) << t;
    EXPECT_NEAR(paid.later[static_cast<size_t>(t)], 2e-4 * (100 - n_early), 1e-7) << t;
  }
}

TEST(HeadSampler, QueriesReadTheBlocksThatTheCachePacks) {
  const Seen seen(256);
  const std::vector<HeadId> heads = {{0, 0}};
  HeadSampler sampler(heads, {.n_queries = 128});
  sampler.observe(seen.observation(0));
  const HeadSample sample = sampler.take()[0];
  ASSERT_EQ(sample.chunks[0].queries.size(), 256u);
  int last = 0;
  for (const SampleQuery& query : sample.chunks[0].queries) {
    EXPECT_EQ(query.first, 0);
    // Each row of a packed block is at least 32 rows older than the query, and no further block is.
    EXPECT_LE(query.coded_end - 1, query.position - 32);
    EXPECT_GT(query.coded_end + 63, query.position - 32);
    EXPECT_EQ(query.coded_end % 64, 0);
    last = query.position;
  }
  EXPECT_EQ(last, 255);
}

TEST(HeadSampler, QueriesThatReadNothingCodedAreLeftOut) {
  const std::vector<HeadId> heads = {{0, 0}};
  const Seen narrow(256, 32), wide(256, 100);
  HeadSampler none(heads, {.n_queries = 16});
  none.observe(narrow.observation(0));
  EXPECT_TRUE(none.take().empty());
  HeadSampler some(heads, {.n_queries = 16});
  some.observe(wide.observation(0));
  const HeadSample sample = some.take()[0];
  for (const SampleQuery& query : sample.chunks[0].queries) {
    EXPECT_EQ(query.first, query.position - 99);
    EXPECT_LT(query.first, query.coded_end);
  }
}

TEST(HeadSampler, RefusesWhatItDoesNotKnow) {
  const std::vector<HeadId> heads = {{0, 1}};
  Seen seen(256);
  HeadSampler sampler(heads, {});
  Observation o = seen.observation(0);
  o.n_rows = 255;
  EXPECT_ERROR(sampler.observe(o), ErrorCode::kInvalidArgument, "q has 4096 floats");
  o = seen.observation(0);
  o.max_bias = 8;
  EXPECT_ERROR(sampler.observe(o), ErrorCode::kUnsupported, "ALiBi, 8");
  seen.mask[255 * 256 + 3] = -0.5f;
  EXPECT_ERROR(sampler.observe(seen.observation(0)), ErrorCode::kUnsupported, "-0.5");
  seen.mask[255 * 256 + 3] = -INFINITY;  // a hole
  EXPECT_ERROR(sampler.observe(seen.observation(0)), ErrorCode::kUnsupported, "position");
  seen.mask[255 * 256 + 3] = 0;
  seen.mask[200] = 0;  // the future
  HeadSampler fine(heads, {.n_queries = 1});
  fine.observe(seen.observation(0));
  o = seen.observation(0);
  o.n_head_kv = 1;
  o.k = o.k.first(o.k.size() / 2);
  o.v = o.v.first(o.v.size() / 2);
  EXPECT_ERROR(fine.observe(o), ErrorCode::kMismatch, "layer 0 changed its shape");
}

TEST(ChooseHeads, SpreadsOverTheModel) {
  const std::vector<LayerShape> shapes = {{2, 64, 64}, {0, 0, 0}, {2, 64, 64}, {4, 64, 64}};
  EXPECT_EQ(choose_heads(shapes, 100).size(), 8u);
  EXPECT_EQ(choose_heads(shapes, 4), (std::vector<HeadId>{{0, 0}, {2, 0}, {3, 0}, {3, 2}}));
  EXPECT_TRUE(choose_heads(shapes, 0).empty());
}

}  // namespace
}  // namespace headq
