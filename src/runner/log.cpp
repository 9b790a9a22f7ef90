#include "runner/log.h"

#include <llama.h>

#include <mutex>

namespace headq {
namespace {

// The first error is the cause; what follows it are the callers that gave up.
class FirstError {
 public:
  // Lines may arrive in pieces: a piece marked "continued" belongs to the line before it.
  void add(ggml_log_level level, const char* text) {
    const std::lock_guard lock(mutex_);
    if (level != GGML_LOG_LEVEL_CONT) adding_ = level == GGML_LOG_LEVEL_ERROR && line_.empty();
    if (adding_) line_ += text;
  }

  std::string take() {
    const std::lock_guard lock(mutex_);
    const std::string line = line_.substr(0, line_.find_last_not_of('\n') + 1);
    line_.clear();
    adding_ = false;
    return line;
  }

 private:
  std::mutex mutex_;
  std::string line_;
  bool adding_ = false;
};

FirstError& first_error() {
  static FirstError instance;
  return instance;
}

}  // namespace

void capture_llama_log() {
  llama_log_set(
      [](ggml_log_level level, const char* text, void*) { first_error().add(level, text); },
      nullptr);
}

std::string take_llama_error() { return first_error().take(); }

}  // namespace headq
