#include "calibrate/codebook.h"

#include <Eigen/Dense>
#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "core/random.h"
#include "codec/trellis.h"

namespace headq {
namespace {

using Matrix = Eigen::MatrixXd;

constexpr int kStates = 16;
constexpr size_t kStartRows = 2048;  // rows that beginnings are tried on
constexpr int kStartIterations = 6;
constexpr int kMeansIterations = 12;
constexpr double kRidge = 1e-3;  // of the mean weight of a codeword: keeps unused ones where they are

// Coordinates that each nibble reaches: its own, and with a trellis those of the next nibble, except
// where two nibbles share a coordinate, which would make three meet.
std::vector<int32_t> reach_of(std::span<const NibbleCut> cuts, bool trellis) {
  std::vector<int32_t> reach;
  for (size_t g = 0; g < cuts.size(); ++g) {
    int end = cuts[g].end;
    if (trellis && g + 1 < cuts.size()) {
      const bool next_is_double = g + 2 < cuts.size() && cuts[g + 1] == cuts[g + 2];
      if (!next_is_double) end = cuts[g + 1].end;
    }
    reach.push_back(cuts[g].first);
    reach.push_back(end);
  }
  return reach;
}

// The part of the work that belongs to one set of cuts.
class CodebookFit {
 public:
  CodebookFit(const CodebookSamples& samples, std::span<const NibbleCut> cuts, bool trellis)
      : samples_(samples), cuts_(cuts), reach_(reach_of(cuts, trellis)), trellis_(trellis) {
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

  // k-means on the first n rows, each nibble on its own coordinates, on what the nibble before left
  // of a coordinate they share.
  void start(size_t n, uint64_t seed) {
    Random random(seed);
    std::vector<float> left;  // of a shared coordinate
    for (size_t g = 0; g < cuts_.size(); ++g) {
      const size_t dims = static_cast<size_t>(cuts_[g].end - cuts_[g].first);
      const bool second = g > 0 && cuts_[g] == cuts_[g - 1];
      std::vector<float> points(n * dims);
      for (size_t i = 0; i < n; ++i) {
        const float* row = samples_.row(i) + cuts_[g].first;
        for (size_t c = 0; c < dims; ++c) points[i * dims + c] = second ? left[i * dims + c] : row[c];
      }
      double error = 0.0;
      const std::vector<float> means = k_means(points, n, dims, random, error);
      left = points;
      for (size_t i = 0; i < n; ++i) {
        const size_t best = nearest(means, dims, points.data() + i * dims).first;
        for (size_t c = 0; c < dims; ++c) left[i * dims + c] -= means[best * dims + c];
      }
      for (size_t c = 0; c < dims; ++c) {
        for (size_t s = 0; s < kStates; ++s) {
          table_[(term_begin_[g] + c) * kStates + s] = means[s * dims + c];
        }
      }
      // What a nibble adds to the next one's coordinates begins with noise as large as the error
      // there, since from zero it would stay zero.
      const double sigma = std::sqrt(error / static_cast<double>(dims));
      const size_t reached_before = g > 0 ? static_cast<size_t>(std::max(reach_[2 * g - 1] - cuts_[g].first, 0)) : 0;
      if (second || reached_before == 0) continue;
      for (size_t c = 0; c < dims; ++c) {
        float* table = table_.data() + (term_begin_[g] - reached_before + c) * kStates;
        for (size_t s = 0; s < kStates; ++s) table[s] = static_cast<float>(sigma * random.normal());
      }
    }
  }

  // One turn over the first n rows: nibbles, then codewords. Returns the error before the codewords
  // changed.
  double iterate(size_t n) {
    const double error = code(n);
    for (size_t first = 0; first < cuts_.size();) {
      size_t end = first + 1;
      while (end < cuts_.size() && cuts_[end] == cuts_[first]) ++end;
      solve(n, first, end);
      first = end;
    }
    return error;
  }

  // Weighted mean error of the first n rows, whose nibbles it finds.
  double code(size_t n) {
    const Trellis trellis(samples_.n_coords, reach_, table_);
    nibbles_.resize(n * cuts_.size());
    std::vector<float> decoded(static_cast<size_t>(samples_.n_coords));
    double sum = 0.0, weight = 0.0;
    for (size_t i = 0; i < n; ++i) {
      uint8_t* nibbles = nibbles_.data() + i * cuts_.size();
      trellis.encode(samples_.row(i), nibbles);
      trellis.decode(nibbles, decoded.data());
      double error = 0.0;
      for (int c = 0; c < samples_.n_coords; ++c) {
        const double e = static_cast<double>(samples_.row(i)[c]) - decoded[static_cast<size_t>(c)];
        error += e * e;
      }
      sum += samples_.weights[i] * error;
      weight += samples_.weights[i];
    }
    return weight > 0.0 ? sum / weight : 0.0;
  }

 private:
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
    add(random.below(n));
    while (means.size() < kStates * dims) {
      double total = 0.0;
      for (size_t j = 0; j < n; ++j) total += distance[j] * samples_.weights[j];
      double target = random.uniform() * total;
      size_t pick = n - 1;
      for (size_t j = 0; j < n && total > 0.0; ++j) {
        target -= distance[j] * samples_.weights[j];
        if (target <= 0.0) {
          pick = j;
          break;
        }
      }
      add(pick);
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
    return means;
  }

  // The least-squares change of all codewords at the coordinates of nibbles [first, end), which have
  // the same ones: theirs, and those of the nibble before that reaches them.
  void solve(size_t n, size_t first, size_t end) {
    const int c0 = cuts_[first].first, dims = cuts_[first].end - c0;
    const size_t from = first > 0 && reach_[2 * first - 1] > c0 ? first - 1 : first;
    const size_t n_nibbles = end - from;
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
      std::array<Eigen::Index, 4> index{};
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
  std::vector<uint8_t> nibbles_;
  bool trellis_;
};

// Codewords as 8-bit integers with one scale a term.
void quantise(const std::vector<float>& table, NibCode& code) {
  for (size_t i = 0; i < table.size() / kStates; ++i) {
    const float* term = table.data() + i * kStates;
    float largest = 0.0f;
    for (int s = 0; s < kStates; ++s) largest = std::max(largest, std::abs(term[s]));
    const float scale = largest / 127.0f;
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
  CodebookFit fit(samples, cuts, options.trellis);
  const size_t few = std::min(samples.n(), kStartRows);
  std::vector<float> best;
  double least = std::numeric_limits<double>::infinity();
  for (int start = 0; start < options.n_starts; ++start) {
    fit.start(few, options.seed + static_cast<uint64_t>(start));
    for (int i = 0; i < kStartIterations; ++i) fit.iterate(few);
    const double error = fit.code(few);
    if (!(error < least)) continue;
    least = error;
    best = fit.table();
  }
  fit.set_table(std::move(best));
  for (int i = 0; i < options.n_iterations; ++i) {
    fit.iterate(i < options.n_iterations / 2 ? few : samples.n());
  }
  FittedCodebook out;
  out.code.reach = fit.reach();
  quantise(fit.table(), out.code);
  fit.set_table([&] {
    std::vector<float> table;
    for (size_t i = 0; i < out.code.codebook.size(); ++i) {
      table.push_back(out.code.scale[i / kStates] * static_cast<float>(out.code.codebook[i]));
    }
    return table;
  }());
  out.error = fit.code(samples.n());
  return out;
}

}  // namespace headq
