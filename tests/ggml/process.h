#pragma once

// Child processes with their output in a file, and a small HTTP client for 127.0.0.1.

#include <sys/types.h>

#include <map>
#include <string>
#include <vector>

namespace headq::testing {

class Process {
 public:
  // Starts args[0] with extra environment; stdout and stderr go to one file. Throws
  // std::runtime_error when it cannot be started.
  Process(const std::vector<std::string>& args, const std::map<std::string, std::string>& env);
  ~Process();  // kills it when it still runs
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Exit status; -1 when a signal ended it or when it had to be killed after `seconds`.
  int wait(double seconds);
  bool is_running();
  std::string output() const;  // so far

 private:
  pid_t pid_ = -1;
  int status_ = 0;
  std::string log_path_;
};

// A TCP port of 127.0.0.1 that is free now.
int free_port();

struct HttpAnswer {
  int status = 0;  // 0: no connection or no answer in time
  std::string body;
};

// method is GET or POST. Waits at most `seconds` for the answer.
HttpAnswer http(const std::string& method, int port, const std::string& path,
                const std::string& body, double seconds);

}  // namespace headq::testing
