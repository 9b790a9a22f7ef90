#include "models/tiny_weights.h"

#include <cmath>

namespace headq::testing {
namespace {

constexpr int kQueryRank = 3;
constexpr double kQueryFloor = 0.15;  // full-rank part of a query, relative to the subspace
constexpr double kFastChannel = 0.2;  // weight of channels that rotate fast
constexpr double kOutlier = 3.0;      // gain of outlier key channels
constexpr int kOutlierEvery = 16;

bool rotates_slowly(const AttentionShape& shape, int channel) {
  if (shape.pairs == RopePairs::kNone) return channel % 4 == 0;
  if (channel >= shape.n_rot) return true;
  const int n_pairs = shape.n_rot / 2;
  const int pair = shape.pairs == RopePairs::kAdjacent ? channel / 2 : channel % n_pairs;
  return 4 * pair >= 3 * n_pairs;
}

// Directions of one KV head: what its keys and queries vary along.
struct HeadStatistics {
  std::vector<double> key_std;         // [d]
  std::vector<double> query_basis;     // [d][kQueryRank]
  std::vector<double> query_variance;  // [d]
};

HeadStatistics make_statistics(Random& random, const AttentionShape& shape) {
  const int d = shape.head_dim;
  HeadStatistics head{std::vector<double>(d, 1.0), std::vector<double>(d * kQueryRank),
                      std::vector<double>(d)};
  for (int c = random.below(kOutlierEvery); c < d; c += kOutlierEvery) head.key_std[c] = kOutlier;
  for (int c = 0; c < d; ++c) {
    const double weight = rotates_slowly(shape, c) ? 1.0 : kFastChannel;
    head.query_variance[c] = kQueryFloor * kQueryFloor;
    for (int r = 0; r < kQueryRank; ++r) {
      const double u = weight * random.gaussian();
      head.query_basis[c * kQueryRank + r] = u;
      head.query_variance[c] += u * u;
    }
  }
  return head;
}

double mean(const std::vector<double>& values) {
  double sum = 0.0;
  for (double x : values) sum += x;
  return sum / static_cast<double>(values.size());
}

// Factor on queries that gives logits the wanted standard deviation.
double query_gain(const AttentionShape& shape, const HeadStatistics& head) {
  double variance = 0.0;
  double key_power = 0.0;
  for (int c = 0; c < shape.head_dim; ++c) {
    const double key_variance = head.key_std[c] * head.key_std[c];
    variance += head.query_variance[c] * key_variance;
    key_power += key_variance / shape.head_dim;
  }
  if (shape.qk_norm) variance /= mean(head.query_variance) * key_power;
  return shape.sharpness / shape.scale / std::sqrt(variance);
}

void add_query_head(Random& random, const AttentionShape& shape, const HeadStatistics& head,
                    double gain, std::vector<float>& out) {
  const double unit = 1.0 / std::sqrt(shape.n_embd);
  const std::vector<float> coefficients =
      random.gaussians(static_cast<size_t>(kQueryRank) * shape.n_embd, unit);
  for (int c = 0; c < shape.head_dim; ++c) {
    for (int i = 0; i < shape.n_embd; ++i) {
      double w = kQueryFloor * unit * random.gaussian();
      for (int r = 0; r < kQueryRank; ++r) {
        w += head.query_basis[c * kQueryRank + r] * coefficients[r * shape.n_embd + i];
      }
      out.push_back(static_cast<float>(gain * w));
    }
  }
}

void add_key_head(Random& random, const AttentionShape& shape, const HeadStatistics& head,
                  std::vector<float>& out) {
  for (int c = 0; c < shape.head_dim; ++c) {
    const double stddev = head.key_std[c] / std::sqrt(shape.n_embd);
    for (int i = 0; i < shape.n_embd; ++i) {
      out.push_back(static_cast<float>(stddev * random.gaussian()));
    }
  }
}

}  // namespace

AttentionWeights make_attention(Random& random, const AttentionShape& shape) {
  AttentionWeights out;
  const int group = shape.n_head / shape.n_head_kv;
  double norm_gain = 0.0;
  for (int g = 0; g < shape.n_head_kv; ++g) {
    const HeadStatistics head = make_statistics(random, shape);
    const double gain = query_gain(shape, head);
    for (int h = 0; h < group; ++h) {
      add_query_head(random, shape, head, shape.qk_norm ? 1.0 : gain, out.q);
    }
    add_key_head(random, shape, head, out.k);
    norm_gain += gain / shape.n_head_kv;
  }
  const int n_kv = shape.n_head_kv * shape.head_dim;
  out.v = make_linear(random, n_kv, shape.n_embd, 1.0);
  out.q_bias = random.gaussians(static_cast<size_t>(shape.n_head) * shape.head_dim, 0.1);
  out.k_bias = random.gaussians(n_kv, 1.0);
  out.v_bias = random.gaussians(n_kv, 0.1);
  if (shape.qk_norm) {
    out.q_norm.assign(shape.head_dim, static_cast<float>(norm_gain));
    out.k_norm.assign(shape.head_dim, 1.0f);
  }
  return out;
}

std::vector<float> make_linear(Random& random, int n_out, int n_in, double gain) {
  return random.gaussians(static_cast<size_t>(n_out) * n_in, gain / std::sqrt(n_in));
}

std::vector<float> make_norm(Random& random, int n, double center) {
  std::vector<float> out(n);
  for (float& x : out) x = static_cast<float>(center * (1.0 + 0.1 * random.gaussian()));
  return out;
}

std::vector<float> make_embedding(Random& random, int n_vocab, int n_embd, double rms) {
  constexpr double kCommon = 0.4;  // cosine of a row with the direction all rows share
  const std::vector<float> common = random.gaussians(n_embd, kCommon * rms);
  std::vector<float> out = random.gaussians(static_cast<size_t>(n_vocab) * n_embd,
                                            rms * std::sqrt(1 - kCommon * kCommon));
  for (size_t i = 0; i < out.size(); ++i) out[i] += common[i % n_embd];
  return out;
}

std::vector<float> concat(const std::vector<float>& a, const std::vector<float>& b,
                          const std::vector<float>& c) {
  std::vector<float> out = a;
  out.insert(out.end(), b.begin(), b.end());
  out.insert(out.end(), c.begin(), c.end());
  return out;
}

}  // namespace headq::testing
