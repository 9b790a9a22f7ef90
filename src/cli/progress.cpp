#include "cli/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>

namespace headq {
namespace {

constexpr std::chrono::milliseconds kRedraw{200};
constexpr const char* kWipe = "\r\x1b[K";

// "5 s", "1:05", "2:03:04".
std::string duration(double seconds) {
  const long s = std::lround(std::min(seconds, 1e7));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{}:{:02}", s / 60, s % 60);
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

}  // namespace

std::string progress_line(const std::string& label, size_t done, size_t total,
                          double elapsed_seconds) {
  if (total == 0) return label;
  const double share = static_cast<double>(done) / static_cast<double>(total);
  std::string line = fmt::format("{}  {:3.0f} %", label, std::floor(100.0 * share));
  if (done > 0) {
    const double left =
        elapsed_seconds * static_cast<double>(total - done) / static_cast<double>(done);
    line += fmt::format("  {} left", duration(left));
  }
  return line;
}

Progress::Progress(std::string label)
    : label_(std::move(label)), enabled_(isatty(STDERR_FILENO) != 0), start_(Clock::now()) {}

Progress::~Progress() {
  if (drawn_) std::fputs(kWipe, stderr);
}

void Progress::update(size_t done, size_t total) {
  if (!enabled_) return;
  const Clock::time_point now = Clock::now();
  if (drawn_ && done < total && now - last_draw_ < kRedraw) return;
  last_draw_ = now;
  drawn_ = true;
  const std::chrono::duration<double> elapsed = now - start_;
  fmt::print(stderr, "{}{}", kWipe, progress_line(label_, done, total, elapsed.count()));
  std::fflush(stderr);
}

}  // namespace headq
