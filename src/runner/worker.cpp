#include "runner/worker.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <exception>
#include <optional>
#include <system_error>
#include <utility>

#include "headq/error.h"

namespace headq {
namespace {

// A message is its size, what kind it is, and its text.
enum class Kind : uint32_t { kText, kError };  // kError: an ErrorCode in the first byte

struct Head {
  uint32_t n_bytes = 0;
  Kind kind = Kind::kText;
};

struct Message {
  Kind kind = Kind::kText;
  std::string text;
};

bool send_all(int socket, const void* data, size_t n) {
  const char* at = static_cast<const char*>(data);
  while (n > 0) {
    const ssize_t sent = ::send(socket, at, n, MSG_NOSIGNAL);
    if (sent < 0 && errno == EINTR) continue;
    if (sent <= 0) return false;
    at += sent;
    n -= static_cast<size_t>(sent);
  }
  return true;
}

bool receive_all(int socket, void* data, size_t n) {
  char* at = static_cast<char*>(data);
  while (n > 0) {
    const ssize_t got = ::recv(socket, at, n, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return false;
    at += got;
    n -= static_cast<size_t>(got);
  }
  return true;
}

bool send_message(int socket, const Message& message) {
  const Head head{static_cast<uint32_t>(message.text.size()), message.kind};
  return send_all(socket, &head, sizeof head) &&
         send_all(socket, message.text.data(), message.text.size());
}

// Nothing when the other end is gone.
std::optional<Message> receive_message(int socket) {
  Head head;
  if (!receive_all(socket, &head, sizeof head)) return std::nullopt;
  Message message{head.kind, std::string(head.n_bytes, '\0')};
  if (!receive_all(socket, message.text.data(), message.text.size())) return std::nullopt;
  return message;
}

Message error_message(ErrorCode code, const char* what) {
  return {Kind::kError, static_cast<char>(code) + std::string(what)};
}

Message answer(const std::function<std::string()>& work) {
  try {
    return {Kind::kText, work()};
  } catch (const Error& error) {
    return error_message(error.code(), error.what());
  } catch (const std::exception& error) {
    return error_message(ErrorCode::kUnsupported, error.what());
  }
}

// The child's life: until the parent's end of the socket is closed.
[[noreturn]] void serve(int socket, const std::function<Worker::Handler()>& make) {
  ::prctl(PR_SET_PDEATHSIG, SIGKILL);
  const int nothing = ::open("/dev/null", O_RDWR);
  for (const int fd : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) ::dup2(nothing, fd);
  Worker::Handler handler;
  while (const auto request = receive_message(socket)) {
    const Message message = answer([&] {
      if (!handler) handler = make();
      return handler(request->text);
    });
    if (!send_message(socket, message)) break;
  }
  ::_exit(0);
}

std::string reason(int error) { return std::generic_category().message(error); }

}  // namespace

Worker::Worker(std::string name, std::function<Handler()> make) : name_(std::move(name)) {
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("no socket for a process: {}", reason(errno)));
  }
  std::fflush(nullptr);
  pid_ = ::fork();
  if (pid_ == 0) {
    ::close(ends[0]);
    serve(ends[1], make);
  }
  const int error = errno;
  ::close(ends[1]);
  socket_ = ends[0];
  if (pid_ < 0) {
    ::close(socket_);
    throw Error(ErrorCode::kIo, fmt::format("cannot start a process: {}", reason(error)));
  }
}

Worker::~Worker() {
  ::close(socket_);
  if (pid_ < 0) return;
  ::kill(pid_, SIGKILL);  // it has nothing to save
  while (::waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {
  }
}

std::string Worker::ask(const std::string& request) {
  if (pid_ < 0 || !send_message(socket_, {Kind::kText, request})) report_death();
  auto message = receive_message(socket_);
  if (!message) report_death();
  if (message->kind == Kind::kText) return std::move(message->text);
  throw Error(static_cast<ErrorCode>(message->text.at(0)), message->text.substr(1));
}

void Worker::report_death() {
  int status = 0;
  std::string how = "is gone";
  if (pid_ > 0 && ::waitpid(pid_, &status, 0) == pid_) {
    how = WIFSIGNALED(status) ? fmt::format("died of signal {} ({})", WTERMSIG(status),
                                            ::strsignal(WTERMSIG(status)))
                              : fmt::format("ended with exit code {}", WEXITSTATUS(status));
  }
  pid_ = -1;
  throw Error(ErrorCode::kIo, fmt::format("the process of {} {}", name_, how));
}

}  // namespace headq
