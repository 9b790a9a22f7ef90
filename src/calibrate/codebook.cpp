#include "calibrate/codebook.h"

#include <Eigen/Dense>
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "codec/nib_codec.h"
#include "codec/trellis.h"
#include "core/random.h"

namespace headq {
namespace {

using Matrix = Eigen::MatrixXd;

constexpr int kStates = 16;
constexpr size_t kAnnealedRows = 2048;
constexpr double kHeat = 0.8;  // first noise on codewords, in units of the error they leave
constexpr int kMeansIterations = 12;
constexpr float kLargestEntry = 120.0f;  // so that even grids are integers
// Ranges of grids: from so many times the largest sample down in these steps.
constexpr double kWidest = 1.3, kRangeStep = 0.87;
constexpr double kNearlyAsGood = 1.1;
constexpr double kRidge = 1e-3;  // of the mean weight of a codeword: keeps unused ones where they are

// Coordinates that each nibble reaches: its own and those of the next nibble, if they are at most
// `most` and not part of a grid, in whose coordinates three would meet.
std::vector<int32_t> reach_of(std::span<const NibbleCut> cuts, int most) {
  std::vector<int32_t> reach;
  for (size_t g = 0; g < cuts.size(); ++g) {
    int end = cuts[g].end;
    if (g + 1 < cuts.size() && cuts[g + 1].role == NibbleRole::kFitted &&
        cuts[g + 1].end - cuts[g + 1].first <= most) {
      end = cuts[g + 1].end;
    }
    reach.push_back(cuts[g].first);
    reach.push_back(end);
  }
  return reach;
}

// The part of the work that belongs to one set of cuts.
class CodebookFit {
 public:
  CodebookFit(const CodebookSamples& samples, std::span<const NibbleCut> cuts, int reach)
      : samples_(samples), cuts_(cuts), reach_(reach_of(cuts, reach)) {
    term_begin_.push_back(0);
    for (size_t g = 0; g < cuts_.size(); ++g) {
      term_begin_.push_back(term_begin_.back() +
                            static_cast<size_t>(reach_[2 * g + 1] - reach_[2 * g]));
    }
    table_.assign(term_begin_.back() * kStates, 0.0f);
  }

  const std::vector<float>& table() const { return table_; }
  void set_table(std::vector<float> table) { table_ = std::move(table); }
  const std::vector<int32_t>& reach() const { return reach_; }

  // k-means on the first n rows, each nibble on its own coordinates.
  void start(size_t n, Random& random) {
    for (size_t g = 0; g < cuts_.size(); ++g) {
      if (cuts_[g].role == NibbleRole::kCoarse) start_coarse(g);
      if (cuts_[g].role == NibbleRole::kFine) start_fine(g);
      if (cuts_[g].role != NibbleRole::kFitted) continue;
      const size_t dims = static_cast<size_t>(cuts_[g].end - cuts_[g].first);
      std::vector<float> points(n * dims);
      for (size_t i = 0; i < n; ++i) {
        std::copy_n(samples_.row(i) + cuts_[g].first, dims, points.data() + i * dims);
      }
      double error = 0.0;
      const std::vector<float> means = k_means(points, n, dims, random, error);
      for (size_t c = 0; c < dims; ++c) {
        for (size_t s = 0; s < kStates; ++s) {
          table_[(term_begin_[g] + c) * kStates + s] = means[s * dims + c];
        }
      }
      spread(g, std::sqrt(error / static_cast<double>(dims)), random);
    }
  }

  // One turn over the first n rows: nibbles, then codewords.
  void iterate(size_t n) {
    code(n);
    for (size_t g = 0; g < cuts_.size(); ++g) {
      if (cuts_[g].role == NibbleRole::kFitted) solve(n, g);
    }
  }

  // A turn that moves the codewords of grids of two coordinates as well: even steps waste some where
  // rows are rare. Those of one coordinate stay even, see Grid.
  void iterate_all(size_t n) {
    iterate(n);
    for (size_t g = 0; g < cuts_.size(); ++g) {
      if (is_of_grid_of_two(g)) centre(n, g);
    }
  }

  // Moves every codeword by noise, in units of its coordinate's error at the last iterate().
  void shake(double amplitude, Random& random) {
    size_t term = 0;
    for (size_t g = 0; g < cuts_.size(); ++g) {
      for (int c = reach_[2 * g]; c < reach_[2 * g + 1]; ++c, ++term) {
        if (cuts_[g].role != NibbleRole::kFitted && c < cuts_[g].end) continue;
        const double sigma = amplitude * std::sqrt(coord_error_[static_cast<size_t>(c)]);
        for (size_t s = 0; s < kStates; ++s) {
          table_[term * kStates + s] += static_cast<float>(sigma * random.normal());
        }
      }
    }
  }

  // Weighted mean error of the first n rows, whose nibbles it finds.
  double code(size_t n) {
    const Trellis trellis(samples_.n_coords, reach_, table_);
    const TrellisSearch search(trellis);
    nibbles_.resize(n * cuts_.size());
    std::vector<float> decoded(static_cast<size_t>(samples_.n_coords));
    coord_error_.assign(static_cast<size_t>(samples_.n_coords), 0.0);
    double weight = 0.0;
    for (size_t i = 0; i < n; ++i) {
      uint8_t* nibbles = nibbles_.data() + i * cuts_.size();
      search.encode(samples_.row(i), nibbles);
      trellis.decode(nibbles, decoded.data());
      for (size_t c = 0; c < decoded.size(); ++c) {
        const double e = static_cast<double>(samples_.row(i)[c]) - decoded[c];
        coord_error_[c] += samples_.weights[i] * e * e;
      }
      weight += samples_.weights[i];
    }
    double sum = 0.0;
    for (double& e : coord_error_) sum += e /= std::max(weight, 1e-30);
    return sum;
  }

 private:
  // Where the nibble before g reaches the coordinates of g, its codewords begin as shifts of the
  // grid there, evenly spread over the distance between neighbouring codewords (whose error is that
  // of a uniform quantizer of that step), and neighbours get shifts far apart (bits reversed).
  void spread(size_t g, double error, Random& random) {
    if (g == 0 || reach_[2 * g - 1] <= cuts_[g].first) return;
    const size_t reached = static_cast<size_t>(reach_[2 * g - 1] - cuts_[g].first);
    const double step = std::sqrt(12.0) * error;
    for (size_t c = 0; c < reached; ++c) {
      float* table = table_.data() + (term_begin_[g] - reached + c) * kStates;
      const size_t odd = 2 * random.below(8) + 1, offset = random.below(kStates);
      for (size_t s = 0; s < kStates; ++s) {
        const size_t m = c == 0 ? s : (s * odd + offset) % kStates;
        const size_t reversed = (m & 1) << 3 | (m & 2) << 1 | (m & 4) >> 1 | (m & 8) >> 3;
        table[s] = static_cast<float>(step * (static_cast<double>(reversed) + 0.5 - kStates / 2.0) / kStates);
      }
    }
  }

  static std::pair<size_t, double> nearest(const std::vector<float>& means, size_t dims,
                                           const float* x) {
    size_t best = 0;
    double least = std::numeric_limits<double>::infinity();
    for (size_t s = 0; s < means.size() / dims; ++s) {
      double distance = 0.0;
      for (size_t c = 0; c < dims; ++c) {
        const double e = static_cast<double>(x[c]) - means[s * dims + c];
        distance += e * e;
      }
      if (distance < least) {
        least = distance;
        best = s;
      }
    }
    return {best, least};
  }

  // Grids begin as 256 (or 64) even steps over a range around 0. Those of 256 stay even: even steps are
  // exact in 8-bit tables (multiples of 8 up to 120), others would lose as much to rounding.
  struct Grid {
    double coarse_step = 0.0;
    int n_fine = 16;  // steps of the fine nibble for each coordinate
  };

  // fine: the grid's fine nibble. The range is what leaves least error on the samples, ends that are
  // clipped included; of ranges that are nearly as good the widest, for tokens yet to come.
  Grid grid_of(int coord, size_t fine) const {
    const int n_fine = cuts_[fine].end - cuts_[fine].first == 2 ? 4 : 16;
    double largest = 0.0, square = 0.0, weight = 0.0;
    for (size_t i = 0; i < samples_.n(); ++i) {
      const double x = samples_.row(i)[coord];
      if (samples_.weights[i] <= 0.0f) continue;
      square += samples_.weights[i] * x * x;
      weight += samples_.weights[i];
      largest = std::max(largest, std::abs(x));
    }
    const double rms = std::sqrt(square / std::max(weight, 1e-30));
    std::vector<std::pair<double, double>> tried;  // range, error
    for (double range = kWidest * largest; range > 0.0 && range > rms; range *= kRangeStep) {
      tried.emplace_back(range, grid_error(coord, 2.0 * range / (kStates * n_fine), kStates * n_fine));
    }
    if (tried.empty()) return {2.0 * largest / kStates, n_fine};
    double least = tried[0].second;
    for (const auto& [range, error] : tried) least = std::min(least, error);
    for (const auto& [range, error] : tried) {
      if (error <= kNearlyAsGood * least) return {2.0 * range / kStates, n_fine};
    }
    return {2.0 * largest / kStates, n_fine};
  }

  // Weighted squared error of an even grid around 0.
  double grid_error(int coord, double step, int n_steps) const {
    double sum = 0.0;
    for (size_t i = 0; i < samples_.n(); ++i) {
      const double at = samples_.row(i)[coord] / step + n_steps / 2.0 - 0.5;
      const double e = at - std::clamp(std::round(at), 0.0, n_steps - 1.0);
      sum += samples_.weights[i] * e * e;
    }
    return sum * step * step;
  }

  void start_coarse(size_t g) {
    const bool fine_follows = g + 1 < cuts_.size() && cuts_[g + 1].role == NibbleRole::kFine &&
                              cuts_[g + 1].first == cuts_[g].first;
    const Grid grid = grid_of(cuts_[g].first, fine_follows ? g + 1 : g - 1);
    float* table = table_.data() + term_begin_[g] * kStates;
    for (int s = 0; s < kStates; ++s) {
      table[s] = static_cast<float>((s - (kStates - 1) / 2.0) * grid.coarse_step);
    }
  }

  void start_fine(size_t g) {
    for (int c = cuts_[g].first; c < cuts_[g].end; ++c) {
      const Grid grid = grid_of(c, g);
      const int shift = c == cuts_[g].first ? 0 : 2;
      float* table =
          table_.data() + (term_begin_[g] + static_cast<size_t>(c - cuts_[g].first)) * kStates;
      for (int s = 0; s < kStates; ++s) {
        const int step = s >> shift & (grid.n_fine - 1);
        table[s] = static_cast<float>((step - (grid.n_fine - 1) / 2.0) * grid.coarse_step / grid.n_fine);
      }
    }
  }

  bool is_of_grid_of_two(size_t g) const {
    const auto is_wide = [this](size_t i) {
      return i < cuts_.size() && cuts_[i].role == NibbleRole::kFine && cuts_[i].end - cuts_[i].first == 2;
    };
    if (cuts_[g].role != NibbleRole::kCoarse) return is_wide(g);
    const bool fine_before = g > 0 && is_wide(g - 1) && cuts_[g - 1].end == cuts_[g].end;
    const bool fine_behind = is_wide(g + 1) && cuts_[g + 1].first == cuts_[g].first;
    return fine_before || fine_behind;
  }

  // The least-squares codewords of one nibble at its own coordinates, all other codewords as they are.
  void centre(size_t n, size_t g) {
    for (int c = cuts_[g].first; c < cuts_[g].end; ++c) {
      std::array<double, kStates> sum{}, weight{};
      for (size_t i = 0; i < n; ++i) {
        const uint8_t* nibbles = nibbles_.data() + i * cuts_.size();
        double e = samples_.row(i)[c];
        for (size_t h = g > 0 ? g - 1 : g; h < std::min(g + 2, cuts_.size()); ++h) {
          if (c < reach_[2 * h] || c >= reach_[2 * h + 1]) continue;
          e -= table_[(term_begin_[h] + static_cast<size_t>(c - reach_[2 * h])) * kStates + nibbles[h]];
        }
        sum[nibbles[g]] += samples_.weights[i] * e;
        weight[nibbles[g]] += samples_.weights[i];
      }
      float* table = table_.data() + (term_begin_[g] + static_cast<size_t>(c - reach_[2 * g])) * kStates;
      for (size_t s = 0; s < kStates; ++s) {
        if (weight[s] > 0.0) table[s] += static_cast<float>(sum[s] / weight[s]);
      }
    }
  }

  // Weighted Lloyd iterations from a k-means++ beginning (Arthur, Vassilvitskii 2007).
  std::vector<float> k_means(const std::vector<float>& points, size_t n, size_t dims, Random& random,
                             double& error) const {
    std::vector<float> means;
    std::vector<double> distance(n, std::numeric_limits<double>::infinity());
    const auto add = [&](size_t i) {
      means.insert(means.end(), points.begin() + static_cast<ptrdiff_t>(i * dims),
                   points.begin() + static_cast<ptrdiff_t>((i + 1) * dims));
      const std::vector<float> last(means.end() - static_cast<ptrdiff_t>(dims), means.end());
      for (size_t j = 0; j < n; ++j) {
        distance[j] = std::min(distance[j], nearest(last, dims, points.data() + j * dims).second);
      }
    };
    // A point drawn with the odds of weight times squared distance to the means there are.
    const auto draw = [&](const auto& odds) {
      double total = 0.0;
      for (size_t j = 0; j < n; ++j) total += odds(j);
      double target = random.uniform() * total;
      for (size_t j = 0; j < n && total > 0.0; ++j) {
        target -= odds(j);
        if (target <= 0.0) return j;
      }
      return n - 1;
    };
    add(draw([&](size_t j) { return static_cast<double>(samples_.weights[j]); }));
    while (means.size() < kStates * dims) {
      add(draw([&](size_t j) { return distance[j] * samples_.weights[j]; }));
    }
    for (int turn = 0; turn < kMeansIterations; ++turn) {
      std::vector<double> sum(kStates * dims, 0.0), weight(kStates, 0.0);
      double total = 0.0, all = 0.0;
      for (size_t i = 0; i < n; ++i) {
        const auto [s, least] = nearest(means, dims, points.data() + i * dims);
        const double w = samples_.weights[i];
        weight[s] += w;
        total += w * least;
        all += w;
        for (size_t c = 0; c < dims; ++c) sum[s * dims + c] += w * points[i * dims + c];
      }
      error = all > 0.0 ? total / all : 0.0;
      for (size_t s = 0; s < kStates; ++s) {
        if (weight[s] <= 0.0) continue;
        for (size_t c = 0; c < dims; ++c) {
          means[s * dims + c] = static_cast<float>(sum[s * dims + c] / weight[s]);
        }
      }
    }
    if (dims == 1) std::sort(means.begin(), means.end());
    return means;
  }

  // The least-squares change of all codewords at the coordinates of nibble `own`: its own, and those
  // of the nibble before where that reaches them.
  void solve(size_t n, size_t own) {
    const int c0 = cuts_[own].first, dims = cuts_[own].end - c0;
    const size_t from = own > 0 && reach_[2 * own - 1] > c0 ? own - 1 : own;
    const size_t end = own + 1, n_nibbles = end - from;
    const auto unknowns = static_cast<Eigen::Index>(n_nibbles * kStates);
    Matrix normal = Matrix::Zero(unknowns, unknowns), right = Matrix::Zero(unknowns, dims);
    const auto entry = [&](size_t g, int c) {  // table of nibble g at coordinate c
      return table_.data() + (term_begin_[g] + static_cast<size_t>(c - reach_[2 * g])) * kStates;
    };
    std::vector<const float*> tables;
    for (size_t g = from; g < end; ++g) {
      for (int c = 0; c < dims; ++c) tables.push_back(entry(g, c0 + c));
    }
    double total = 0.0;
    for (size_t i = 0; i < n; ++i) {
      const double w = samples_.weights[i];
      const uint8_t* nibbles = nibbles_.data() + i * cuts_.size();
      total += w;
      std::array<Eigen::Index, 2> index{};
      for (size_t g = 0; g < n_nibbles; ++g) {
        index[g] = static_cast<Eigen::Index>(g * kStates + nibbles[from + g]);
      }
      for (size_t g = 0; g < n_nibbles; ++g) {
        for (size_t h = 0; h <= g; ++h) normal(index[g], index[h]) += w;
      }
      for (int c = 0; c < dims; ++c) {
        double e = samples_.row(i)[c0 + c];
        for (size_t g = 0; g < n_nibbles; ++g) {
          e -= tables[g * static_cast<size_t>(dims) + static_cast<size_t>(c)][nibbles[from + g]];
        }
        for (size_t g = 0; g < n_nibbles; ++g) right(index[g], c) += w * e;
      }
    }
    normal.diagonal().array() += kRidge * total / kStates + 1e-30;
    const Matrix change = normal.selfadjointView<Eigen::Lower>().ldlt().solve(right);
    for (size_t g = 0; g < n_nibbles; ++g) {
      for (int c = 0; c < dims; ++c) {
        float* table = entry(from + g, c0 + c);
        for (int s = 0; s < kStates; ++s) {
          table[s] += static_cast<float>(change(static_cast<Eigen::Index>(g * kStates) + s, c));
        }
      }
    }
  }

  const CodebookSamples& samples_;
  std::span<const NibbleCut> cuts_;
  std::vector<int32_t> reach_;
  std::vector<size_t> term_begin_;
  std::vector<float> table_;
  std::vector<uint8_t> nibbles_;       // of the rows that code() coded last
  std::vector<double> coord_error_;    // weighted mean of each coordinate's squared error then
};

float largest_entry(const float* term) {
  float largest = 0.0f;
  for (int s = 0; s < kStates; ++s) largest = std::max(largest, std::abs(term[s]));
  return largest;
}

// Codewords as 8-bit integers with one scale a term. The two terms of a coordinate of fitted nibbles get
// the same, and sums within 8 bits, so that readers can add them as integers (ValueSums).
void quantise(const std::vector<float>& table, std::span<const NibbleCut> cuts, NibCode& code) {
  std::vector<int> coord;        // [n_terms]
  std::vector<float> reached(static_cast<size_t>(cuts.back().end), 0.0f);  // a coordinate's largest sum
  std::vector<bool> is_fitted(reached.size(), true);
  for (size_t g = 0; g < cuts.size(); ++g) {
    for (int c = code.reach[2 * g]; c < code.reach[2 * g + 1]; ++c) {
      reached[static_cast<size_t>(c)] += largest_entry(table.data() + coord.size() * kStates);
      coord.push_back(c);
    }
    for (int c = cuts[g].first; c < cuts[g].end; ++c) {
      if (cuts[g].role != NibbleRole::kFitted) is_fitted[static_cast<size_t>(c)] = false;
    }
  }
  for (size_t i = 0; i < coord.size(); ++i) {
    const float* term = table.data() + i * kStates;
    const size_t c = static_cast<size_t>(coord[i]);
    const float scale = (is_fitted[c] ? reached[c] : largest_entry(term)) / kLargestEntry;
    code.scale.push_back(scale);
    for (int s = 0; s < kStates; ++s) {
      code.codebook.push_back(
          static_cast<int8_t>(scale > 0.0f ? std::lround(term[s] / scale) : 0));
    }
  }
}

}  // namespace

FittedCodebook fit_codebook(const CodebookSamples& samples, std::span<const NibbleCut> cuts,
                            const CodebookOptions& options) {
  CodebookFit fit(samples, cuts, options.reach);
  const size_t few = std::min(samples.n(), kAnnealedRows);
  Random random(options.seed);
  fit.start(few, random);
  for (int i = 0; i < options.n_annealed; ++i) {
    fit.iterate(few);
    fit.shake(kHeat * (1.0 - static_cast<double>(i) / options.n_annealed), random);
  }
  for (int i = 0; i < options.n_iterations; ++i) fit.iterate_all(samples.n());
  FittedCodebook out;
  out.code.reach = fit.reach();
  quantise(fit.table(), cuts, out.code);
  fit.set_table(nib_table(out.code));
  out.error = fit.code(samples.n());
  return out;
}

}  // namespace headq
