#include "runner/rate_split.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "headq/error.h"

namespace headq {
namespace {

constexpr double kStep = 0.0625;  // bits between the splits that are tried
constexpr double kMostApart = 1.5;  // bits that a side may differ from the total

CodecSpec nib_spec(double rate) {
  CodecSpec spec;
  spec.base = BaseKind::kNib;
  spec.rate = std::round(rate * 1e4) / 1e4;  // its name is to be read by people
  return spec;
}

// Key elements over all elements of a token.
double key_share(const Profile& profile) {
  double keys = 0.0, all = 0.0;
  for (const LayerShape& shape : profile.shapes) {
    keys += shape.n_head_kv * shape.d_k;
    all += shape.n_head_kv * (shape.d_k + shape.d_v);
  }
  return keys / all;
}

}  // namespace

RateSplit split_rate(const Model& model, const Calibration& calibration,
                     std::span<const ChunkedText> texts, double total, const NibOptions& nib,
                     const std::string& scratch) {
  NibOptions options = nib;
  options.kv = {nib_spec(total), nib_spec(total)};
  RateSplit out;
  out.even = calibration.profile(options);
  out.even.save(scratch);
  CacheSpec keys, values;
  keys.kv = {nib_spec(total), {}};
  values.kv = {{}, nib_spec(total)};
  const std::vector<CacheCandidate> candidates = {{"keys", keys, scratch},
                                                  {"values", values, scratch}};
  for (const ChunkedText& text : texts) {
    const PerplexityReport report = measure_perplexity(
        model, text.last_chunk(), candidates, {.n_chunks = 1, .n_threads = nib.n_threads});
    out.key_kld += report.rows[0].summary.kld.value / static_cast<double>(texts.size());
    out.value_kld += report.rows[1].summary.kld.value / static_cast<double>(texts.size());
  }

  const double share = key_share(out.even);
  std::vector<SideRates> rates = {{total, total}};
  for (double keys_rate = std::max(kMinRate, total - kMostApart);
       keys_rate <= std::min(kMaxRate, total + kMostApart); keys_rate += kStep) {
    const double values_rate = (total - share * keys_rate) / (1.0 - share);
    if (values_rate < kMinRate || values_rate > kMaxRate) continue;
    rates.push_back({keys_rate, values_rate});
  }
  const std::vector<SideErrors> errors = calibration.expected_errors(options, rates);
  double least = std::numeric_limits<double>::infinity();
  for (size_t i = 0; i < rates.size(); ++i) {
    const double damage = out.key_kld * errors[i].keys / errors[0].keys +
                          out.value_kld * errors[i].values / errors[0].values;
    if (damage >= least) continue;
    least = damage;
    out.kv = {nib_spec(rates[i].keys), nib_spec(rates[i].values)};
  }
  return out;
}

}  // namespace headq
