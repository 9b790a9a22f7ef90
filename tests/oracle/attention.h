#pragma once

#include <cmath>
#include <vector>

// Attention written down naively in double precision. Shares nothing with src/.
namespace oracle {

struct Head {
  std::vector<std::vector<double>> keys;    // [cells][d_k]
  std::vector<std::vector<double>> values;  // [cells][d_v]
};

struct Softmax {
  double scale = 1.0;
  double softcap = 0.0;
  double slope = 1.0;
  bool has_sink = false;
  double sink = 0.0;
};

// p [cells] = softmax(softcap(scale q.k) + slope * mask, sink); mask is -inf where a cell is not seen.
inline std::vector<double> weights(const std::vector<double>& q, const Head& head,
                                   const std::vector<double>& mask, const Softmax& options) {
  std::vector<double> scores(mask.size(), -INFINITY);
  double max = options.has_sink ? options.sink : -INFINITY;
  for (size_t t = 0; t < mask.size(); ++t) {
    if (std::isinf(mask[t])) continue;
    double s = 0.0;
    for (size_t c = 0; c < q.size(); ++c) s += q[c] * head.keys[t][c];
    s *= options.scale;
    if (options.softcap != 0.0) s = options.softcap * std::tanh(s / options.softcap);
    scores[t] = s + options.slope * mask[t];
    max = std::max(max, scores[t]);
  }
  double sum = options.has_sink ? std::exp(options.sink - max) : 0.0;
  for (double& s : scores) {
    s = std::isinf(s) ? 0.0 : std::exp(s - max);
    sum += s;
  }
  for (double& p : scores) p /= sum;
  return scores;
}

// out [d_v] = p v.
inline std::vector<double> attend(const std::vector<double>& q, const Head& head,
                                  const std::vector<double>& mask, const Softmax& options,
                                  int d_v) {
  const std::vector<double> p = weights(q, head, mask, options);
  std::vector<double> out(static_cast<size_t>(d_v), 0.0);
  for (size_t t = 0; t < mask.size(); ++t) {
    for (size_t c = 0; c < out.size(); ++c) out[c] += p[t] * head.values[t][c];
  }
  return out;
}

}  // namespace oracle
