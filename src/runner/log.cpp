#include "runner/log.h"

#include <llama.h>

#include <mutex>

namespace headq {
namespace {

class LastError {
 public:
  // Lines may arrive in pieces: a piece marked "continued" belongs to the line before it.
  void add(ggml_log_level level, const char* text) {
    const std::lock_guard lock(mutex_);
    if (level != GGML_LOG_LEVEL_CONT) in_error_ = level == GGML_LOG_LEVEL_ERROR;
    if (!in_error_) return;
    if (level != GGML_LOG_LEVEL_CONT) line_.clear();
    line_ += text;
  }

  std::string take() {
    const std::lock_guard lock(mutex_);
    std::string line = std::move(line_);
    line_.clear();
    while (!line.empty() && line.back() == '\n') line.pop_back();
    return line;
  }

 private:
  std::mutex mutex_;
  std::string line_;
  bool in_error_ = false;
};

LastError& last_error() {
  static LastError instance;
  return instance;
}

}  // namespace

void capture_llama_log() {
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) { last_error().add(level, text); },
      nullptr);
}

std::string take_llama_error() { return last_error().take(); }

}  // namespace headq
