#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace headq {

// How nibbles are spent on independent Gaussian coordinates (docs/nib.md, "Rate").

// What a nibble does for its coordinates: it codes them by fitted codewords, or, where more than four
// bits a coordinate are due, it is one of several that add up to an even grid: coarse steps of one
// coordinate, and the fine steps between them of one coordinate (8 bits in all) or of two (6 bits).
enum class NibbleRole : uint8_t { kFitted, kCoarse, kFine };

// The coordinates of one nibble. A grid is coarse {c}, fine {c} or coarse {c}, fine {c, c + 1},
// coarse {c + 1}; other nibbles have coordinates of their own.
struct NibbleCut {
  int first = 0, end = 0;
  NibbleRole role = NibbleRole::kFitted;

  bool operator==(const NibbleCut&) const = default;
};

// Cuts of a spectrum: variances of the coordinates, strongest first.
class RateCurve {
 public:
  // max_group: most coordinates of a nibble, 1 or more.
  explicit RateCurve(std::span<const double> spectrum, int max_group = 8);

  int max_nibbles() const { return static_cast<int>(distortion_.size()) - 1; }
  // Least expected squared error of all coordinates with n nibbles, n in [0, max_nibbles()].
  double distortion(int n) const { return distortion_[static_cast<size_t>(n)]; }
  // The cut that reaches it; coordinates behind the last cut have no code.
  std::vector<NibbleCut> cut(int n) const;

 private:
  int n_coords_;
  std::vector<double> distortion_;  // [max_nibbles + 1]
  std::vector<uint8_t> choice_;     // [n_coords][max_nibbles + 1]: size of the group that starts here
};

// Nibbles of each head, at least 1, that sum to `total` (or to what all heads can take) and make the
// sum of weights[h] * distortion least, up to the curves' convexity.
std::vector<int> allocate_nibbles(std::span<const RateCurve> curves, std::span<const double> weights,
                                  int64_t total);

}  // namespace headq
