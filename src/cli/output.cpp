#include "cli/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <system_error>

#include "headq/error.h"

namespace headq {

void check_writable(const std::string& path) {
  std::error_code error;
  const auto status = std::filesystem::status(path, error);
  if (std::filesystem::exists(status) && !std::filesystem::is_regular_file(status)) {
    throw Error(ErrorCode::kIo, fmt::format("cannot write {}: not a regular file", path));
  }
  const std::string probe = fmt::format("{}.{}.probe", path, ::getpid());
  const int fd = ::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot write {}: {}", path, std::generic_category().message(errno)));
  }
  ::close(fd);
  ::unlink(probe.c_str());
}

}  // namespace headq
