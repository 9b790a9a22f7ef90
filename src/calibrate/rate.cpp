#include "calibrate/rate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <queue>

namespace headq {
namespace {

// Choices that are no group size: a grid of one coordinate with two nibbles, of two with three.
constexpr uint8_t kGridOfOne = 255;
constexpr uint8_t kGridOfTwo = 254;
constexpr uint8_t kNoCode = 0;

// Group sizes and how far a fitted code of that size stays behind the rate-distortion bound, as a
// factor on the error (measured on white Gaussian samples; docs/nib.md has the table).
struct GroupSize {
  int n;
  double excess;
};
constexpr std::array<GroupSize, 6> kSizes = {
    {{1, 2.03}, {2, 1.53}, {3, 1.39}, {4, 1.34}, {6, 1.27}, {8, 1.22}}};
constexpr double kGridOfOneExcess = 5.3;  // 8 bits
constexpr double kGridOfTwoExcess = 3.9;  // 6 bits each

// Error of one nibble on coordinates with these variances: reverse water-filling of 4 bits (Cover,
// Thomas, Elements of Information Theory, 10.3.3), times the excess, at most all of them.
double group_error(std::span<const double> variances, double excess) {
  const double total = [&] {
    double sum = 0.0;
    for (double v : variances) sum += v;
    return sum;
  }();
  for (size_t n = variances.size(); n > 0; --n) {  // the n strongest are above the water
    double log_sum = 0.0, below = 0.0;
    for (size_t i = 0; i < variances.size(); ++i) {
      if (i < n) log_sum += std::log2(std::max(variances[i], 1e-300));
      else below += variances[i];
    }
    const double water = std::exp2((log_sum - 8.0) / static_cast<double>(n));
    if (water <= variances[n - 1] || n == 1) {
      return std::min(total, static_cast<double>(n) * water * excess + below);
    }
  }
  return total;
}

}  // namespace

RateCurve::RateCurve(std::span<const double> spectrum, int max_group)
    : n_coords_(static_cast<int>(spectrum.size())) {
  const size_t n = spectrum.size(), width = 2 * n + 1;
  constexpr double kInf = std::numeric_limits<double>::infinity();
  // least[k]: of coordinates i and later with k nibbles, for the i of the moment and those behind it.
  std::vector<std::vector<double>> least(n + 1, std::vector<double>(width, kInf));
  choice_.assign(n * width, kNoCode);
  std::fill(least[n].begin(), least[n].end(), 0.0);
  for (size_t i = n; i-- > 0;) {
    double rest = 0.0;
    for (size_t j = i; j < n; ++j) rest += spectrum[j];
    const double grid_of_one = spectrum[i] * std::exp2(-16.0) * kGridOfOneExcess;
    const double grid_of_two =
        i + 2 <= n ? (spectrum[i] + spectrum[i + 1]) * std::exp2(-12.0) * kGridOfTwoExcess : kInf;
    std::array<double, kSizes.size()> once;
    for (size_t s = 0; s < kSizes.size(); ++s) {
      const size_t size = static_cast<size_t>(kSizes[s].n);
      const bool fits = i + size <= n && kSizes[s].n <= max_group;
      once[s] = fits ? group_error(spectrum.subspan(i, size), kSizes[s].excess) : kInf;
    }
    for (size_t k = 0; k < width; ++k) {
      double best = rest;
      uint8_t choice = kNoCode;
      if (k >= 2 && grid_of_one + least[i + 1][k - 2] < best) {
        best = grid_of_one + least[i + 1][k - 2];
        choice = kGridOfOne;
      }
      if (k >= 3 && i + 2 <= n && grid_of_two + least[i + 2][k - 3] < best) {
        best = grid_of_two + least[i + 2][k - 3];
        choice = kGridOfTwo;
      }
      for (size_t s = 0; s < kSizes.size() && k >= 1; ++s) {
        if (once[s] == kInf) continue;
        const double error = once[s] + least[i + static_cast<size_t>(kSizes[s].n)][k - 1];
        if (error >= best) continue;
        best = error;
        choice = static_cast<uint8_t>(kSizes[s].n);
      }
      least[i][k] = best;
      choice_[i * width + k] = choice;
    }
  }
  distortion_ = least[0];
}

std::vector<NibbleCut> RateCurve::cut(int n) const {
  std::vector<NibbleCut> out;
  const size_t width = distortion_.size();
  int i = 0;
  size_t left = static_cast<size_t>(n);
  while (i < n_coords_ && left > 0) {
    const uint8_t choice = choice_[static_cast<size_t>(i) * width + left];
    if (choice == kNoCode) break;
    if (choice == kGridOfOne) {
      out.push_back({i, i + 1, NibbleRole::kCoarse});
      out.push_back({i, i + 1, NibbleRole::kFine});
    } else if (choice == kGridOfTwo) {
      out.push_back({i, i + 1, NibbleRole::kCoarse});
      out.push_back({i, i + 2, NibbleRole::kFine});
      out.push_back({i + 1, i + 2, NibbleRole::kCoarse});
    } else {
      out.push_back({i, i + choice, NibbleRole::kFitted});
    }
    i = choice == kGridOfOne ? i + 1 : out.back().end;
    left = static_cast<size_t>(n) - out.size();
  }
  if (out.empty() && n > 0) out.push_back({0, 1});  // nothing varies, but a code has a nibble
  return out;
}

std::vector<int> allocate_nibbles(std::span<const RateCurve> curves, std::span<const double> weights,
                                  int64_t total) {
  std::vector<int> nibbles(curves.size(), 1);
  // The next step of a head on the lower convex hull of its curve.
  struct Step {
    double gain;  // per nibble
    size_t head;
    int to;

    bool operator<(const Step& other) const {
      return gain != other.gain ? gain < other.gain : head > other.head;
    }
  };
  std::priority_queue<Step> steps;
  const auto push = [&](size_t h) {
    const RateCurve& curve = curves[h];
    const int from = nibbles[h];
    Step best{-1.0, h, from};
    for (int to = from + 1; to <= curve.max_nibbles(); ++to) {
      const double gain =
          weights[h] * (curve.distortion(from) - curve.distortion(to)) / (to - from);
      if (gain > best.gain) best = {gain, h, to};
    }
    if (best.to > from) steps.push(best);
  };
  int64_t left = total - static_cast<int64_t>(curves.size());
  for (size_t h = 0; h < curves.size(); ++h) push(h);
  while (left > 0 && !steps.empty()) {
    const Step step = steps.top();
    steps.pop();
    const int64_t n = std::min<int64_t>(left, step.to - nibbles[step.head]);
    nibbles[step.head] += static_cast<int>(n);
    left -= n;
    push(step.head);
  }
  return nibbles;
}

}  // namespace headq
