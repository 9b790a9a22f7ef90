#pragma once

#include <sys/types.h>

#include <functional>
#include <string>

namespace headq {

// A child process that answers requests one at a time and sleeps in between. Made by fork() alone,
// so that this process must not have started threads or loaded a model before.
class Worker {
 public:
  // Answers one request; may throw, which ask() passes on.
  using Handler = std::function<std::string(const std::string& request)>;

  // name: what messages call it. make runs in the child, before the first request is answered; what
  // it throws is thrown by the first ask(). The child prints nothing. Throws Error(kIo).
  Worker(std::string name, std::function<Handler()> make);
  // Ends the child.
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  // Waits for the answer. Throws the Error that the child threw, or Error(kIo) with the signal or
  // exit status when it died.
  std::string ask(const std::string& request);

  pid_t pid() const { return pid_; }

 private:
  [[noreturn]] void report_death();

  std::string name_;
  pid_t pid_ = -1;
  int socket_ = -1;
};

}  // namespace headq
