#include "diagnose/a2_policy.h"

#include <bit>
#include <cmath>
#include <memory>

#include "codec/a2_codec.h"
#include "codec/min_max.h"
#include "codec/nibbles.h"

namespace headq {
namespace {

constexpr size_t kBaseAt = 0, kUniformAt = 1, kRandomAt = 2, kPaidAt = 3, kOracleAt = 4;
constexpr int kUniformLevels = 6;
constexpr int kUniformChannels = 64;  // that share a token's scale and zero, as in kivi

double bits_of(const Codec& codec) {
  return 8.0 * static_cast<double>(codec.layout().bytes()) / (kBlockTokens * codec.head_dim());
}

// Rows on grids of kUniformLevels steps.
void code_uniform(int d, const float* rows, uint64_t valid, float* coded) {
  for (int t = 0; t < kBlockTokens; ++t) {
    if ((valid >> t & 1) == 0) continue;
    for (int begin = 0; begin < d; begin += kUniformChannels) {
      const int end = std::min(begin + kUniformChannels, d);
      Range range;
      for (int c = begin; c < end; ++c) range.add(finite_half(rows[t * d + c]));
      const MinMax stored(range, kUniformLevels - 1);
      const float zero = half_to_float(stored.zero), scale = half_to_float(stored.scale);
      for (int c = begin; c < end; ++c) {
        const int code = min_max_code(finite_half(rows[t * d + c]), zero, scale, kUniformLevels - 1);
        coded[t * d + c] = zero + scale * static_cast<float>(code);
      }
    }
  }
}

// Blocks through a codec that refines tokens, and the attention that these get.
class RefiningCoder {
 public:
  RefiningCoder(const HeadSample& sample, ValuePolicy policy)
      : sample_(sample),
        policy_(policy),
        codec_(sample.d_v, policy == ValuePolicy::kRandom ? TokenChoice::kRandom : TokenChoice::kPaid, 1),
        block_(codec_.layout().bytes()) {}

  void operator()(size_t chunk, int first, const float* rows, uint64_t valid, float* coded) {
    const PaidAttention& paid = sample_.chunks[chunk].paid;
    const float* later = paid.later.data() + first;
    const float* known = policy_ == ValuePolicy::kOracle ? later : paid.early.data() + first;
    codec_.encode_paid(rows, valid, known, block_.data());
    const uint64_t refined = codec_.refined(block_.data());
    for (int t = 0; t < kBlockTokens; ++t) {
      codec_.decode(block_.data(), t, coded + t * codec_.head_dim());
      if ((valid >> t & 1) == 0) continue;
      all_ += later[t];
      if ((refined >> t & 1) != 0) captured_ += later[t];
    }
  }
  double bits() const { return bits_of(codec_); }
  double captured() const { return all_ > 0 ? captured_ / all_ : kNoValue; }

 private:
  const HeadSample& sample_;
  ValuePolicy policy_;
  A2Codec codec_;
  std::vector<uint8_t> block_;
  double all_ = 0, captured_ = 0;
};

PolicyFigures figures_of(const DenseAttention& dense, ValuePolicy policy) {
  const HeadSample& sample = dense.sample();
  const CodecSpec base = CodecSpec::parse("kivi2");
  PolicyFigures out;
  ValueReading reading;
  if (policy == ValuePolicy::kBase) {
    reading = dense.read_values(base, sample.profile);
    out.bits = value_bits(base, sample);
  } else if (policy == ValuePolicy::kUniform) {
    reading = dense.read_values([&](size_t, int, const float* rows, uint64_t valid, float* coded) {
      code_uniform(sample.d_v, rows, valid, coded);
    });
    out.bits = value_bits(base, sample) - 2 + std::log2(kUniformLevels);
  } else {
    RefiningCoder coder(sample, policy);
    reading = dense.read_values(std::ref(coder));
    out.bits = coder.bits();
    out.captured = coder.captured();
  }
  out.mse = reading.mse;
  out.a2_error = query_mean(reading, [](const ValueQuery& q) { return q.weighted; });
  out.output_error = query_mean(reading, [](const ValueQuery& q) { return q.output_error; });
  return out;
}

std::vector<double> column(std::span<const A2PolicyHead> heads, size_t policy,
                           double PolicyFigures::*figure) {
  std::vector<double> out;
  for (const A2PolicyHead& head : heads) out.push_back(head.policies[policy].*figure);
  return out;
}

// Geometric mean over heads of one policy's figure over another's.
Interval ratio(std::span<const A2PolicyHead> heads, size_t policy, size_t other,
               double PolicyFigures::*figure, const BootstrapOptions& options) {
  std::vector<double> logs;
  for (const A2PolicyHead& head : heads) {
    logs.push_back(std::log(head.policies[policy].*figure / head.policies[other].*figure));
  }
  const Interval log = mean_interval(logs, options);
  return {std::exp(log.value), std::exp(log.low), std::exp(log.high)};
}

MeanError wins(std::span<const A2PolicyHead> heads, size_t other) {
  std::vector<double> out;
  for (const A2PolicyHead& head : heads) {
    out.push_back(head.policies[kPaidAt].output_error < head.policies[other].output_error ? 1.0 : 0.0);
  }
  return mean_error(out);
}

}  // namespace

std::string to_string(ValuePolicy policy) {
  switch (policy) {
    case ValuePolicy::kBase:
      return "base";
    case ValuePolicy::kUniform:
      return "uniform";
    case ValuePolicy::kRandom:
      return "random";
    case ValuePolicy::kPaid:
      return "paid";
    case ValuePolicy::kOracle:
      break;
  }
  return "oracle";
}

A2PolicyHead a2_policy_head(const DenseAttention& dense) {
  A2PolicyHead out;
  for (size_t i = 0; i < kValuePolicies.size(); ++i) {
    out.policies[i] = figures_of(dense, kValuePolicies[i]);
  }
  return out;
}

A2Policy a2_policy(std::span<const A2PolicyHead> heads, const BootstrapOptions& options) {
  A2Policy out;
  out.n_heads = heads.size();
  for (size_t i = 0; i < kValuePolicies.size(); ++i) {
    A2PolicyRow& row = out.rows.emplace_back();
    row.policy = kValuePolicies[i];
    row.bits = mean_error(column(heads, i, &PolicyFigures::bits)).value;
    row.mse = mean_error(column(heads, i, &PolicyFigures::mse));
    row.a2_error = mean_error(column(heads, i, &PolicyFigures::a2_error));
    row.output_error = mean_error(column(heads, i, &PolicyFigures::output_error));
    row.a2_ratio = ratio(heads, i, kBaseAt, &PolicyFigures::a2_error, options);
    row.output_ratio = ratio(heads, i, kBaseAt, &PolicyFigures::output_error, options);
    row.captured = mean_interval(column(heads, i, &PolicyFigures::captured), options);
  }
  for (size_t other : {kUniformAt, kRandomAt, kOracleAt}) {
    out.paid_over.push_back({kValuePolicies[other],
                             ratio(heads, kPaidAt, other, &PolicyFigures::output_error, options),
                             wins(heads, other)});
  }
  return out;
}

}  // namespace headq
