#include "diagnose/direction.h"

#include <cmath>

namespace headq {
namespace {

DirectionRow row_of(std::span<const HeadReadings> heads, const CodecSpec& spec) {
  std::vector<double> kl, fisher, output, log_ratio;
  for (const HeadReadings& head : heads) {
    const KeyReading& reading = head.key(spec);
    kl.push_back(mean_kl(reading));
    fisher.push_back(query_mean(reading, [](const QueryDamage& q) { return q.scores.fisher; }));
    output.push_back(query_mean(reading, [](const QueryDamage& q) { return q.output_error; }));
    log_ratio.push_back(std::log(kl.back() / mean_kl(head.key(base_spec()))));
  }
  return {spec.to_string(), mean_error(kl), mean_error(fisher), mean_error(output),
          exp_of(mean_error(log_ratio))};
}

}  // namespace

Direction direction(std::span<const HeadReadings> heads) {
  Direction out;
  out.n_heads = heads.size();
  out.right = row_of(heads, right_sign_spec());
  out.none = row_of(heads, base_spec());
  out.wrong = row_of(heads, wrong_sign_spec());
  std::vector<double> ordered;
  for (const HeadReadings& head : heads) {
    const double none = mean_kl(head.key(base_spec()));
    ordered.push_back(mean_kl(head.key(right_sign_spec())) < none &&
                              none < mean_kl(head.key(wrong_sign_spec()))
                          ? 1.0
                          : 0.0);
  }
  out.ordered = mean_error(ordered);
  return out;
}

}  // namespace headq
