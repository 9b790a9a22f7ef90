#pragma once

#include <chrono>
#include <cstddef>
#include <string>

namespace headq {

// One line on stderr with a share done and the time left; writes nothing when stderr is no
// terminal. The line is wiped when the object goes. Not thread-safe.
class Progress {
 public:
  explicit Progress(std::string label);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Redraws at most five times a second, and always at the end.
  void update(size_t done, size_t total);

 private:
  using Clock = std::chrono::steady_clock;

  std::string label_;
  bool enabled_;
  bool drawn_ = false;
  Clock::time_point start_;
  Clock::time_point last_draw_{};
};

// "label  42 %  1:05 left"; what update() draws after elapsed seconds. done in [0, total].
std::string progress_line(const std::string& label, size_t done, size_t total,
                          double elapsed_seconds);

}  // namespace headq
