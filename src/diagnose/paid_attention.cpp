#include "diagnose/paid_attention.h"

#include <Eigen/Dense>
#include <algorithm>

#include "codec/codec.h"

namespace headq {

void add_paid_attention(const PayingHead& head, PaidAttention& paid) {
  using Rows = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;
  const Eigen::Map<const Rows> q(head.q.data(), head.n_tokens, head.d);
  const Eigen::Map<const Rows> k(head.k.data(), head.n_tokens, head.d);
  paid.early.resize(static_cast<size_t>(head.n_tokens));
  paid.later.resize(static_cast<size_t>(head.n_tokens));
  Eigen::Map<Eigen::ArrayXf> early(paid.early.data(), head.n_tokens);
  Eigen::Map<Eigen::ArrayXf> later(paid.later.data(), head.n_tokens);
  Rows scores;
  for (int begin = 0; begin < head.n_tokens; begin += kBlockTokens) {
    const int end = std::min(begin + kBlockTokens, head.n_tokens);
    scores.noalias() = head.scale * q.middleRows(begin, end - begin) * k.topRows(end).transpose();
    for (int i = begin; i < end; ++i) {
      const int first = head.first[static_cast<size_t>(i)], n = i + 1 - first;
      auto p = scores.row(i - begin).segment(first, n).array();
      if (head.softcap > 0) p = head.softcap * (p / head.softcap).tanh();
      p = (p - p.maxCoeff()).exp();
      p = (p / p.sum()).square();
      const int packed = std::max(i + 1 - head.window, 0) / kBlockTokens * kBlockTokens;
      const int n_packed = std::clamp(packed - first, 0, n);
      later.segment(first, n_packed) += p.head(n_packed).transpose();
      early.segment(first + n_packed, n - n_packed) += p.tail(n - n_packed).transpose();
    }
  }
}

}  // namespace headq
