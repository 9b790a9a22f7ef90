#include "diagnose/reading.h"

#include <gtest/gtest.h>

#include <cmath>
#include <memory>
#include <vector>

#include "codec/codec.h"
#include "diagnose/planted.h"
#include "headq/error.h"
#include "oracle/attention.h"

namespace headq {
namespace {

using testing::keys_of;
using testing::planted_head;

constexpr int kSinks = 4;

// What the oracle says of one query that reads `keys` instead of the sample's.
struct Expected {
  double kl = 0;
  double output_error = 0;
};

std::vector<double> row(const std::vector<float>& data, int i, int d) {
  return {data.begin() + i * d, data.begin() + (i + 1) * d};
}

oracle::Head head_of(const HeadSample& sample, const std::vector<float>& keys,
                     const SampleChunk& chunk, bool identity_values) {
  oracle::Head head;
  for (int t = 0; t < chunk.n_tokens; ++t) {
    head.keys.push_back(row(keys, t, sample.d_k));
    if (identity_values) {
      head.values.emplace_back(static_cast<size_t>(chunk.n_tokens), 0.0);
      head.values.back()[static_cast<size_t>(t)] = 1.0;
    } else {
      head.values.push_back(row(chunk.v, t, sample.d_v));
    }
  }
  return head;
}

// keys: what query i of chunk c reads, [n_tokens][d].
Expected expect(const HeadSample& sample, size_t c, size_t i, const std::vector<float>& keys) {
  const SampleChunk& chunk = sample.chunks[c];
  const SampleQuery& query = chunk.queries[i];
  std::vector<double> mask(static_cast<size_t>(chunk.n_tokens), -INFINITY);
  for (int t = query.first; t <= query.position; ++t) mask[static_cast<size_t>(t)] = 0.0;
  const std::vector<double> q = row(chunk.q, static_cast<int>(i), sample.d_k);
  oracle::Softmax options;
  options.scale = sample.scale;
  options.softcap = sample.softcap;
  const auto attend = [&](const std::vector<float>& k, bool identity) {
    return oracle::attend(q, head_of(sample, k, chunk, identity), mask, options,
                          identity ? chunk.n_tokens : sample.d_v);
  };
  Expected out;
  const auto p = attend(chunk.k, true), p_coded = attend(keys, true);
  for (size_t t = 0; t < p.size(); ++t) {
    if (p[t] > 0) out.kl += p[t] * std::log(p[t] / p_coded[t]);
  }
  const auto o = attend(chunk.k, false), o_coded = attend(keys, false);
  for (size_t x = 0; x < o.size(); ++x) {
    out.output_error += (o_coded[x] - o[x]) * (o_coded[x] - o[x]) / sample.d_v;
  }
  return out;
}

// The rows a codec makes of whole blocks; the others are copied.
std::vector<float> decoded(const Codec& codec, const std::vector<float>& rows, int end) {
  const int d = codec.head_dim();
  std::vector<float> out = rows;
  std::vector<uint8_t> block(codec.layout().bytes());
  for (int b = 0; b < end; b += kBlockTokens) {
    const uint64_t valid = b == 0 ? ~uint64_t{0} << kSinks : ~uint64_t{0};
    codec.encode(rows.data() + b * d, valid, block.data());
    for (int t = b == 0 ? kSinks : 0; t < kBlockTokens; ++t) {
      codec.decode(block.data(), t, out.data() + (b + t) * d);
    }
  }
  return out;
}

TEST(Reading, ErrorsWhereNoQueryLooksDoNoHarm) {
  const HeadSample sample = planted_head({.query_axis = 5, .query_size = 2});
  const DenseAttention dense(sample);
  auto keys = keys_of(sample);
  for (size_t i = 0; i < keys[0].size(); ++i) {
    if (i % 32 != 5) keys[0][i] += static_cast<float>(i % 7);
  }
  const KeyReading unseen = dense.read_keys(keys);
  EXPECT_GT(unseen.mse, 5.0);
  for (const QueryDamage& query : unseen.queries) {
    EXPECT_EQ(query.scores.kl, 0.0);
    EXPECT_EQ(query.scores.fisher, 0.0);
    EXPECT_EQ(query.scores.score_error, 0.0);
    EXPECT_EQ(query.output_error, 0.0);
    EXPECT_FALSE(query.flipped);
  }
  // The planted error: one hundredth of that, along the axis that queries point to.
  keys = keys_of(sample);
  for (size_t i = 5; i < keys[0].size(); i += 32) keys[0][i] += 0.5f * static_cast<float>(i % 7);
  const KeyReading seen = dense.read_keys(keys);
  EXPECT_LT(seen.mse, 0.05 * unseen.mse);
  EXPECT_GT(mean_kl(seen), 0.05);
}

TEST(Reading, AVectorThatAllKeysShareDoesNothing) {
  const HeadSample sample = planted_head({.query_size = 0.5f});
  const DenseAttention dense(sample);
  auto keys = keys_of(sample);
  double size = 0;
  for (size_t i = 0; i < keys[0].size(); ++i) {
    const float shift = static_cast<float>(static_cast<int>(i % 32) - 10);
    keys[0][i] += shift;
    if (i < 32) size += shift * shift / 32;
  }
  const KeyReading reading = dense.read_keys(keys);
  EXPECT_NEAR(reading.mse, size, 1e-9);
  for (const QueryDamage& query : reading.queries) {
    EXPECT_NEAR(query.scores.kl, 0.0, 1e-15);  // sums of a product differ by rounding
    EXPECT_FALSE(query.flipped);
  }
}

TEST(Reading, AgreesWithTheOracle) {
  for (float softcap : {0.0f, 3.0f}) {
    const HeadSample sample = planted_head({.n_tokens = 160,
                                            .n_group = 2,
                                            .n_queries = 3,
                                            .scale = 0.3f,
                                            .softcap = softcap,
                                            .n_chunks = 2});
    const DenseAttention dense(sample);
    auto keys = keys_of(sample);
    for (auto& chunk : keys) {
      for (size_t i = 0; i < chunk.size(); ++i) chunk[i] += 0.1f * static_cast<float>(i % 11);
    }
    const KeyReading reading = dense.read_keys(keys);
    ASSERT_EQ(reading.queries.size(), 12u);
    for (size_t i = 0; i < 12; ++i) {
      const Expected wanted = expect(sample, i / 6, i % 6, keys[i / 6]);
      EXPECT_GT(wanted.kl, 1e-4);
      EXPECT_NEAR(reading.queries[i].scores.kl, wanted.kl, 1e-9 * wanted.kl);
      EXPECT_NEAR(reading.queries[i].output_error, wanted.output_error, 1e-9 * wanted.output_error);
    }
  }
}

TEST(Reading, CodedKeysAreThoseOfTheCacheWithSinksAndWindowDense) {
  const HeadSample sample = planted_head({.n_tokens = 256, .n_queries = 4, .scale = 0.2f});
  const DenseAttention dense(sample);
  const CodecSpec spec = CodecSpec::parse("kivi2+hq4x4");
  const auto codec = make_key_codec(spec, 32, &sample.profile, 0, 0);
  const KeyReading reading = dense.read_keys(spec, sample.profile);
  for (size_t i = 0; i < 4; ++i) {
    // Positions 159, 191, 223, 255 read blocks that end at 128, 128, 192, 192.
    const int end = i < 2 ? 128 : 192;
    ASSERT_EQ(sample.chunks[0].queries[i].coded_end, i == 1 ? 128 : end);
    const Expected wanted = expect(sample, 0, i, decoded(*codec, sample.chunks[0].k, end));
    EXPECT_GT(wanted.kl, 1e-4);
    EXPECT_NEAR(reading.queries[i].scores.kl, wanted.kl, 1e-9 * wanted.kl) << i;
    EXPECT_NEAR(reading.queries[i].output_error, wanted.output_error, 1e-9 * wanted.output_error);
  }
  const std::vector<float> all = decoded(*codec, sample.chunks[0].k, 192);
  double mse = 0;
  for (size_t i = kSinks * 32; i < 192 * 32; ++i) {
    const double e = static_cast<double>(all[i]) - sample.chunks[0].k[i];
    mse += e * e / ((192 - kSinks) * 32);
  }
  EXPECT_NEAR(reading.mse, mse, 1e-12);
  EXPECT_GT(reading.relative_mse, 0.0);
  EXPECT_LT(reading.relative_mse, 1.0);
}

TEST(Reading, AWindowHidesWhatLiesBeforeIt) {
  HeadSample sample = planted_head({.n_tokens = 256, .n_queries = 4, .scale = 0.2f});
  for (SampleQuery& query : sample.chunks[0].queries) query.first = query.position - 100;
  const DenseAttention dense(sample);
  const CodecSpec spec = CodecSpec::parse("token2");
  const auto codec = make_key_codec(spec, 32, nullptr, 0, 0);
  const KeyReading reading = dense.read_keys(spec, sample.profile);
  const ValueReading values = dense.read_values(spec, sample.profile);
  for (size_t i = 0; i < 4; ++i) {
    const int end = sample.chunks[0].queries[i].coded_end;
    const Expected wanted = expect(sample, 0, i, decoded(*codec, sample.chunks[0].k, end));
    EXPECT_GT(wanted.kl, 1e-4);
    EXPECT_NEAR(reading.queries[i].scores.kl, wanted.kl, 1e-9 * wanted.kl);
    EXPECT_GT(values.queries[i].output_error, 0.0);
  }
}

TEST(Reading, ValueErrorsCountWithTheSquaredWeight) {
  // One query, uniform attention over the 256 tokens it sees: weights are 1/256, so the readout
  // error of independent errors is near mse * coded / 256^2, and the weighted sum is exactly that.
  const HeadSample sample = planted_head({.n_tokens = 256, .n_queries = 1, .query_size = 0});
  const DenseAttention dense(sample);
  const ValueReading reading = dense.read_values(CodecSpec::parse("token2"), sample.profile);
  ASSERT_EQ(reading.queries.size(), 1u);
  ASSERT_EQ(sample.chunks[0].queries[0].coded_end, 192);
  const double coded = 192 - kSinks;
  EXPECT_NEAR(reading.queries[0].weighted, reading.mse * coded / (256.0 * 256.0), 1e-15);
  EXPECT_NEAR(reading.queries[0].output_error / reading.queries[0].weighted, 1.0, 0.6);
}

TEST(Reading, AFlipIsSeen) {
  const HeadSample sample = planted_head({.n_tokens = 128, .n_queries = 1, .query_axis = 0});
  const DenseAttention dense(sample);
  auto keys = keys_of(sample);
  const float q = sample.chunks[0].q[0];
  const auto scaled = [&](size_t token) { return q * sample.chunks[0].k[token * 32]; };
  size_t top = 0;
  for (size_t t = 1; t < 128; ++t) top = scaled(t) > scaled(top) ? t : top;
  const size_t other = top == 9 ? 10 : 9;
  keys[0][other * 32] = sample.chunks[0].k[top * 32] + (q > 0 ? 1.0f : -1.0f);
  EXPECT_TRUE(dense.read_keys(keys).queries[0].flipped);
  EXPECT_FALSE(dense.read_keys(keys_of(sample)).queries[0].flipped);
}

TEST(Reading, BitsAreThoseOfAPackedBlock) {
  const HeadSample sample = planted_head({.d = 64});
  EXPECT_DOUBLE_EQ(key_bits(CodecSpec::parse("kivi2"), sample), 2.5);
  EXPECT_DOUBLE_EQ(key_bits(CodecSpec::parse("kivi2+hq4x4"), sample), 2.78125);
  EXPECT_DOUBLE_EQ(key_bits(CodecSpec::parse("token2c"), sample), 3.0);
  EXPECT_DOUBLE_EQ(value_bits(CodecSpec::parse("token4"), sample), 5.0);
}

}  // namespace
}  // namespace headq
