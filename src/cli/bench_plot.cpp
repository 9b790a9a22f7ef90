// The plot of headq bench: how many times as fast as f16 each cache is by depth, and what its
// process takes. Panels of one SVG file, one below the other.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/bench_report.h"

namespace headq {
namespace {

constexpr double kWidth = 760, kLeft = 56, kRight = 210;  // kRight holds the labels of the lines
constexpr double kPanelTop = 34, kPanelHeight = 230, kPanelBottom = 52;
constexpr double kLabelGap = 15;
constexpr double kBarHeight = 20, kBarGap = 8;
constexpr size_t kColours = 8;

constexpr const char* kStyle = R"(<style>
svg { --ink: #1f2328; --soft: #656d76; --grid: #d8dee4; --paper: #ffffff;
  --c0: #57606a; --c1: #b08800; --c2: #c4572a; --c3: #0969da; --c4: #1a7f37; --c5: #8250df;
  --c6: #bf3989; --c7: #0f7b85; font: 13px system-ui, sans-serif; background: var(--paper); }
@media (prefers-color-scheme: dark) { svg { --ink: #e6edf3; --soft: #8d96a0; --grid: #30363d;
  --paper: #0d1117; --c0: #9aa4af; --c1: #d7b13b; --c2: #f0885a; --c3: #58a6ff; --c4: #3fb950;
  --c5: #bc8cff; --c6: #f778ba; --c7: #39c5cf; } }
text { fill: var(--ink); } .soft { fill: var(--soft); }
.title { font-weight: 600; font-size: 15px; }
.grid { stroke: var(--grid); } .one { stroke: var(--soft); stroke-dasharray: 4 3; }
.line { fill: none; stroke-width: 2; } .whisker { stroke-width: 1.5; }
</style>
)";

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else {
      out += c;
    }
  }
  return out;
}

std::string text_at(double x, double y, const std::string& anchor, const std::string& text,
                    const std::string& attributes = "") {
  return fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\" {}>{}</text>\n", x, y,
                     anchor, attributes, escaped(text));
}

std::string line_at(double x1, double y1, double x2, double y2, const std::string& attributes) {
  return fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" {}/>\n", x1, y1,
                     x2, y2, attributes);
}

std::string colour(size_t series) { return fmt::format("var(--c{})", series % kColours); }

// 1, 2, 2.5 or 5 times a power of ten, so that `largest` takes four to eight steps.
double nice_step(double largest) {
  const double power = std::pow(10.0, std::floor(std::log10(largest / 4.0)));
  double step = power;
  for (const double factor : {1.0, 2.0, 2.5, 5.0}) {
    if (factor * power <= largest / 4.0) step = factor * power;
  }
  return step;
}

struct Series {
  std::string name;
  std::vector<Spread> ratios;  // by depth
};

// Heights of labels that want to be at `wanted` and must not touch.
std::vector<double> spread_labels(const std::vector<double>& wanted) {
  std::vector<size_t> order(wanted.size());
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return wanted[a] < wanted[b]; });
  std::vector<double> out = wanted;
  for (size_t i = 1; i < order.size(); ++i) {
    out[order[i]] = std::max(out[order[i]], out[order[i - 1]] + kLabelGap);
  }
  // What was pushed below the panel pushes back.
  double floor = kPanelTop + kPanelHeight;
  for (size_t i = order.size(); i-- > 0; floor -= kLabelGap) {
    out[order[i]] = std::min(out[order[i]], floor);
  }
  return out;
}

class RatioPanel {
 public:
  RatioPanel(std::string title, const std::vector<int>& depths, std::vector<Series> series)
      : title_(std::move(title)), depths_(depths), series_(std::move(series)) {
    double largest = 1.0;
    for (const Series& s : series_) {
      for (const Spread& ratio : s.ratios) largest = std::max(largest, ratio.max);
    }
    step_ = nice_step(largest);
    top_ = std::ceil(largest / step_) * step_;
  }

  static double height() { return kPanelTop + kPanelHeight + kPanelBottom; }

  std::string draw() const {
    std::string out = text_at(kLeft, 16, "start", title_, "class=\"title\"");
    out += axes();
    std::vector<double> ends;
    for (size_t i = 0; i < series_.size(); ++i) {
      out += draw_series(i);
      ends.push_back(y(series_[i].ratios.back().median));
    }
    const std::vector<double> labels = spread_labels(ends);
    for (size_t i = 0; i < series_.size(); ++i) {
      const std::string label =
          fmt::format("{}  {:.2f}×", series_[i].name, series_[i].ratios.back().median);
      out += text_at(kWidth - kRight + 12, labels[i] + 4, "start", label,
                     fmt::format("style=\"fill: {}\"", colour(i)));
    }
    return out;
  }

 private:
  double x(size_t depth) const {
    const double n = static_cast<double>(depths_.size());
    return kLeft + (kWidth - kLeft - kRight) * (static_cast<double>(depth) + 0.5) / n;
  }
  double y(double ratio) const { return kPanelTop + kPanelHeight * (1.0 - ratio / top_); }

  std::string axes() const {
    std::string out;
    for (int i = 0; i * step_ <= top_ * 1.0001; ++i) {
      const double at = y(i * step_);
      out += line_at(kLeft, at, kWidth - kRight, at, "class=\"grid\"");
      out += text_at(kLeft - 8, at + 4, "end", fmt::format("{:g}×", i * step_), "class=\"soft\"");
    }
    out += line_at(kLeft, y(1.0), kWidth - kRight, y(1.0), "class=\"one\"");
    const double below = kPanelTop + kPanelHeight;
    for (size_t d = 0; d < depths_.size(); ++d) {
      out += text_at(x(d), below + 18, "middle", fmt::format("{}", depths_[d]), "class=\"soft\"");
    }
    return out + text_at((kLeft + kWidth - kRight) / 2, below + 36, "middle", "tokens in the cache",
                         "class=\"soft\"");
  }

  std::string draw_series(size_t i) const {
    const std::string stroke = fmt::format("style=\"stroke: {}\"", colour(i));
    // Side by side, so that whiskers of equal values are seen.
    const double shift =
        5.0 * (static_cast<double>(i) - 0.5 * static_cast<double>(series_.size() - 1));
    std::string points, marks;
    for (size_t d = 0; d < depths_.size(); ++d) {
      const Spread& ratio = series_[i].ratios[d];
      const double at = x(d) + shift;
      points += fmt::format("{:.1f},{:.1f} ", at, y(ratio.median));
      marks += line_at(at, y(ratio.min), at, y(ratio.max), "class=\"whisker\" " + stroke);
      marks += fmt::format("<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"4\" style=\"fill: {}\"/>\n", at,
                           y(ratio.median), colour(i));
    }
    return fmt::format("<polyline points=\"{}\" class=\"line\" {}/>\n", points, stroke) + marks;
  }

  std::string title_;
  const std::vector<int>& depths_;
  std::vector<Series> series_;
  double step_ = 1.0;
  double top_ = 1.0;
};

std::vector<Series> series_of(const BenchReport& report, std::vector<BenchRun> BenchCell::*runs,
                              int n_tokens) {
  std::vector<Series> out;
  for (size_t i = 0; i < report.candidates.size(); ++i) {
    Series& series = out.emplace_back(Series{report.candidates[i].name, {}});
    for (const auto& cells : report.cells) {
      series.ratios.push_back(speed_of(cells[0].*runs, cells[i].*runs, n_tokens).ratio);
    }
  }
  return out;
}

double bars_height(size_t n) {
  return kPanelTop + static_cast<double>(n) * (kBarHeight + kBarGap) + 12;
}

// Memory at the deepest depth, where it is known.
std::string draw_bars(const BenchReport& report) {
  const std::vector<BenchCell>& cells = report.cells.back();
  uint64_t largest = 1;
  for (const BenchCell& cell : cells) largest = std::max(largest, cell.memory.process);
  std::string out = text_at(
      kLeft, 16, "start",
      fmt::format("Memory of the process above the model, {} tokens", report.plan.depths.back()),
      "class=\"title\"");
  const double left = kLeft + 150, room = kWidth - 110 - left;
  for (size_t i = 0; i < cells.size(); ++i) {
    const double bytes = static_cast<double>(cells[i].memory.process);
    const double top = kPanelTop + static_cast<double>(i) * (kBarHeight + kBarGap);
    const double width = room * bytes / static_cast<double>(largest);
    out += text_at(left - 10, top + 15, "end", report.candidates[i].name);
    out += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" rx=\"3\" "
        "style=\"fill: {}\"/>\n",
        left, top, width, kBarHeight, colour(i));
    const std::string label = bytes == 0 ? "unknown" : fmt::format("{:.1f} MiB", bytes / (1 << 20));
    out += text_at(left + width + 8, top + 15, "start", label, "class=\"soft\"");
  }
  return out;
}

}  // namespace

std::string to_svg(const BenchReport& report) {
  const BenchPlan& plan = report.plan;
  constexpr double kMargin = 44;
  double height = kMargin;
  std::string body;
  const auto put = [&](const std::string& panel, double panel_height) {
    body += fmt::format("<g transform=\"translate(0 {:.1f})\">\n{}</g>\n", height, panel);
    height += panel_height;
  };
  if (plan.n_gen > 0) {
    const RatioPanel panel(fmt::format("Decoding, {} tokens: speed against f16", plan.n_gen),
                           plan.depths, series_of(report, &BenchCell::generate, plan.n_gen));
    put(panel.draw(), RatioPanel::height());
  }
  if (plan.n_prompt > 0) {
    const RatioPanel panel(fmt::format("Prompt, {} tokens: speed against f16", plan.n_prompt),
                           plan.depths, series_of(report, &BenchCell::prompt, plan.n_prompt));
    put(panel.draw(), RatioPanel::height());
  }
  put(draw_bars(report), bars_height(report.candidates.size()));
  const std::string caption =
      fmt::format("{} · -t {} · median of {} repetitions, whiskers: least and most", report.model,
                  report.settings.n_threads, plan.n_repetitions);
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {0:.0f} {1:.0f}\" "
             "width=\"{0:.0f}\" height=\"{1:.0f}\" role=\"img\">\n"
             "<title>headq bench: {2}</title>\n{3}"
             "<rect width=\"100%\" height=\"100%\" style=\"fill: var(--paper)\"/>\n",
             kWidth, height, escaped(report.model), kStyle) +
         text_at(kLeft, 24, "start", caption, "class=\"soft\"") + body + "</svg>\n";
}

}  // namespace headq
