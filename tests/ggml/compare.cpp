#include "ggml/compare.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace headq::testing {
namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

void require_same_shape(const Logits& a, const Logits& b) {
  if (a.n_vocab != b.n_vocab || a.data.size() != b.data.size() || a.n_rows() == 0) {
    throw std::invalid_argument("logits of unlike shape");
  }
}

double log_sum_exp(std::span<const float> row) {
  const double top = *std::max_element(row.begin(), row.end());
  double sum = 0.0;
  for (float x : row) sum += std::exp(x - top);
  return top + std::log(sum);
}

}  // namespace

double max_difference(const Logits& a, const Logits& b) {
  require_same_shape(a, b);
  double worst = 0.0;
  for (size_t i = 0; i < a.data.size(); ++i) {
    const double difference = std::abs(static_cast<double>(a.data[i]) - b.data[i]);
    if (std::isnan(difference)) return kNan;
    worst = std::max(worst, difference);
  }
  return worst;
}

double relative_error(const Logits& a, const Logits& b) {
  require_same_shape(a, b);
  double error = 0.0;
  double power = 0.0;
  for (size_t i = 0; i < a.data.size(); ++i) {
    const double difference = static_cast<double>(a.data[i]) - b.data[i];
    error += difference * difference;
    power += static_cast<double>(a.data[i]) * a.data[i];
  }
  return std::sqrt(error / power);
}

double mean_kld(const Logits& a, const Logits& b) {
  require_same_shape(a, b);
  double sum = 0.0;
  for (int i = 0; i < a.n_rows(); ++i) {
    const double norm_a = log_sum_exp(a.row(i));
    const double norm_b = log_sum_exp(b.row(i));
    for (int t = 0; t < a.n_vocab; ++t) {
      const double log_a = a.row(i)[t] - norm_a;
      const double log_b = b.row(i)[t] - norm_b;
      sum += std::exp(log_a) * (log_a - log_b);
    }
  }
  return sum / a.n_rows();
}

bool all_finite(const Logits& logits) {
  return std::all_of(logits.data.begin(), logits.data.end(),
                     [](float x) { return std::isfinite(x); });
}

bool identical(const Logits& a, const Logits& b) {
  require_same_shape(a, b);
  return std::memcmp(a.data.data(), b.data.data(), a.data.size() * sizeof(float)) == 0;
}

}  // namespace headq::testing
