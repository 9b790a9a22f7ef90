#include "codec/trellis.h"

#include <fmt/format.h>

#include <algorithm>

#include "headq/error.h"

namespace headq {
std::string why_no_chain(std::span<const int32_t> reach, int n_coords) {
  const size_t n_nibbles = reach.size() / 2;
  if (reach.size() % 2 != 0 || n_nibbles < 1 || n_nibbles > static_cast<size_t>(kMaxNibbles)) {
    return fmt::format("{} nibbles are not in 1..{}", n_nibbles, kMaxNibbles);
  }
  for (size_t g = 0; g < n_nibbles; ++g) {
    const int first = reach[2 * g], end = reach[2 * g + 1];
    if (first < 0 || first >= end || end > n_coords) {
      return fmt::format("nibble {} reaches {}..{} of {} coordinates", g, first, end, n_coords);
    }
    if (g >= 2 && first < reach[2 * g - 3]) {
      return fmt::format("nibble {} reaches what nibble {} reaches", g, g - 2);
    }
  }
  return "";
}

Trellis::Trellis(int n_coords, std::span<const int32_t> reach, std::vector<float> table,
                 const CodecKernels& kernels)
    : n_coords_(n_coords),
      n_nibbles_(static_cast<int>(reach.size() / 2)),
      table_(std::move(table)),
      kernels_(&kernels) {
  if (const std::string why = why_no_chain(reach, n_coords); !why.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "trellis: " + why);
  }
  term_begin_.push_back(0);
  for (size_t g = 0; g < static_cast<size_t>(n_nibbles_); ++g) {
    for (int c = reach[2 * g]; c < reach[2 * g + 1]; ++c) coords_.push_back(c);
    term_begin_.push_back(static_cast<int>(coords_.size()));
  }
  if (table_.size() != coords_.size() * 16) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("trellis: {} table entries for {} terms", table_.size(), coords_.size()));
  }
}

void Trellis::decode(const uint8_t* nibbles, float* y) const {
  std::fill_n(y, n_coords_, 0.0f);
  for (int g = 0; g < n_nibbles_; ++g) {
    const size_t s = static_cast<size_t>(g);
    for (int i = term_begin_[s]; i < term_begin_[s + 1]; ++i) {
      y[coords_[static_cast<size_t>(i)]] += table_[static_cast<size_t>(i) * 16 + nibbles[g]];
    }
  }
}

TrellisSearch::TrellisSearch(const Trellis& trellis)
    : trellis_(trellis),
      norms_(static_cast<size_t>(trellis.n_nibbles()) * 16, 0.0f),
      pairs_(static_cast<size_t>(trellis.n_nibbles()) * 256, 0.0f) {
  const std::span<const int> begin = trellis.term_begin(), coords = trellis.coords();
  for (size_t g = 0; g < static_cast<size_t>(trellis.n_nibbles()); ++g) {
    for (size_t i = static_cast<size_t>(begin[g]); i < static_cast<size_t>(begin[g + 1]); ++i) {
      const float* own = trellis.table().data() + i * 16;
      float* norm = norms_.data() + g * 16;
      for (int n = 0; n < 16; ++n) norm[n] += own[n] * own[n];
      if (g == 0) continue;
      for (size_t j = static_cast<size_t>(begin[g - 1]); j < static_cast<size_t>(begin[g]); ++j) {
        if (coords[j] != coords[i]) continue;
        const float* before = trellis.table().data() + j * 16;
        float* pair = pairs_.data() + g * 256;
        for (int m = 0; m < 16; ++m) {
          for (int n = 0; n < 16; ++n) pair[m * 16 + n] += 2.0f * before[m] * own[n];
        }
      }
    }
  }
}

void TrellisSearch::encode(const float* y, uint8_t* nibbles) const {
  uint8_t from[kMaxNibbles][16];
  float cost[16];
  const int n_nibbles = trellis_.n_nibbles();
  trellis_.kernels().viterbi({.n_nibbles = n_nibbles,
                              .term_begin = trellis_.term_begin().data(),
                              .coords = trellis_.coords().data(),
                              .table = trellis_.table().data(),
                              .norms = norms_.data(),
                              .pairs = pairs_.data()},
                             y, from, cost);
  uint8_t n = static_cast<uint8_t>(std::min_element(cost, cost + 16) - cost);
  for (int g = n_nibbles - 1; g >= 0; --g) {
    nibbles[g] = n;
    n = from[g][n];
  }
}

}  // namespace headq
