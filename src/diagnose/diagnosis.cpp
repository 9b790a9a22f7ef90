#include "diagnose/diagnosis.h"

#include <algorithm>
#include <exception>
#include <mutex>

#include "core/half.h"
#include "core/parallel.h"
#include "headq/error.h"

namespace headq {
namespace {

// Everything that is computed from one head alone.
struct HeadFindings {
  HeadReadings readings;
  NullSpaceHead null_space;
  DeployabilityHead deployability;
  A2PolicyHead a2_policy;
  KeyReading identity;
  KeyReading f16;
};

std::vector<CodecSpec> all_key_specs(const HeadSample& sample) {
  std::vector<CodecSpec> specs = metric_key_specs();
  const auto add = [&](const CodecSpec& spec) {
    if (std::find(specs.begin(), specs.end(), spec) == specs.end()) specs.push_back(spec);
  };
  for (const CodecSpec& spec : route_flip_specs()) add(spec);
  for (const CodecSpec& spec : {base_spec(), right_sign_spec(), wrong_sign_spec()}) add(spec);
  for (const FittedCode& code : sample.codes) add(code.spec);
  return specs;
}

std::vector<CodecSpec> all_value_specs(const HeadSample& sample) {
  std::vector<CodecSpec> specs = metric_value_specs();
  for (const FittedCode& code : sample.codes) specs.push_back(code.spec);
  return specs;
}

HeadFindings study(const HeadSample& sample) {
  const DenseAttention dense(sample);
  std::vector<std::vector<float>> keys, rounded;
  for (const SampleChunk& chunk : sample.chunks) {
    keys.push_back(chunk.k);
    auto& rows = rounded.emplace_back(chunk.k);
    for (float& x : rows) x = half_to_float(float_to_half(x));
  }
  HeadFindings out;
  out.identity = dense.read_keys(keys);
  out.f16 = dense.read_keys(rounded);
  out.readings = read_head(dense, all_key_specs(sample), all_value_specs(sample));
  out.null_space = null_space_head(sample);
  out.deployability = deployability_head(dense);
  out.a2_policy = a2_policy_head(dense);
  return out;
}

NoiseFloor noise_floor(std::span<const HeadFindings> findings) {
  NoiseFloor out;
  std::vector<double> kl, flips;
  for (const HeadFindings& head : findings) {
    for (const QueryDamage& query : head.identity.queries) {
      out.identity_kl = std::max(out.identity_kl, query.scores.kl);
    }
    kl.push_back(mean_kl(head.f16));
    flips.push_back(
        query_mean(head.f16, [](const QueryDamage& q) { return q.flipped ? 1.0 : 0.0; }));
  }
  out.f16_kl = mean_error(kl);
  out.f16_kl_max = *std::max_element(kl.begin(), kl.end());
  out.f16_flips = mean_error(flips);
  return out;
}

// Counts steps for the progress: one a head, and some for the statistics of them all, which take
// about as long as that many heads.
class Steps {
 public:
  Steps(size_t n_heads, const DiagnosisOptions& options)
      : options_(options), n_heads_(n_heads), statistic_(n_heads / 10 + 1) {}

  void head() { add(1); }
  void statistic() { add(statistic_); }

 private:
  static constexpr size_t kStatistics = 2;

  void add(size_t n) {
    done_ += n;
    if (options_.progress) options_.progress(done_, n_heads_ + kStatistics * statistic_);
  }

  const DiagnosisOptions& options_;
  size_t n_heads_;
  size_t statistic_;
  size_t done_ = 0;
};

// Studies every head on some threads; the first error of any is thrown.
std::vector<HeadFindings> study_all(std::span<const HeadSample> samples, int n_threads,
                                    Steps& steps) {
  std::vector<HeadFindings> findings(samples.size());
  std::mutex mutex;
  std::exception_ptr error;
  parallel_for(n_threads, samples.size(), [&](size_t i, int) {
    try {
      findings[i] = study(samples[i]);
      const std::lock_guard lock(mutex);
      steps.head();
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!error) error = std::current_exception();
    }
  });
  if (error) std::rethrow_exception(error);
  return findings;
}

}  // namespace

Diagnosis diagnose(std::span<const HeadSample> samples, const DiagnosisOptions& options) {
  if (samples.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "no head reads anything coded: chunks or windows are too short");
  }
  Steps steps(samples.size(), options);
  const std::vector<HeadFindings> findings = study_all(samples, options.bootstrap.n_threads, steps);
  std::vector<HeadReadings> readings;
  std::vector<NullSpaceHead> null_spaces;
  std::vector<DeployabilityHead> deployabilities;
  std::vector<A2PolicyHead> policies;
  Diagnosis out;
  for (const HeadFindings& head : findings) {
    out.n_queries += head.readings.entropies.size();
    readings.push_back(head.readings);
    null_spaces.push_back(head.null_space);
    deployabilities.push_back(head.deployability);
    policies.push_back(head.a2_policy);
  }
  const BootstrapOptions& bootstrap = options.bootstrap;
  out.n_heads = samples.size();
  out.floor = noise_floor(findings);
  out.superiority = metric_superiority(readings, bootstrap);
  steps.statistic();
  out.counterexamples = find_counterexamples(readings);
  out.null_space = null_space(null_spaces);
  out.deployability = deployability(deployabilities, bootstrap);
  out.direction = direction(readings);
  out.a2_policy = a2_policy(policies, bootstrap);
  out.route_flips = route_flips(readings, bootstrap);
  steps.statistic();
  return out;
}

}  // namespace headq
