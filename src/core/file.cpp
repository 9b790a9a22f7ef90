#include "core/file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <utility>

#include "headq/error.h"

namespace headq {
namespace {

[[noreturn]] void fail(std::string_view verb, const std::string& path, int error) {
  throw Error(ErrorCode::kIo,
              fmt::format("cannot {} {}: {}", verb, path, std::generic_category().message(error)));
}

[[noreturn]] void fail_irregular(std::string_view verb, const std::string& path) {
  throw Error(ErrorCode::kIo, fmt::format("cannot {} {}: not a regular file", verb, path));
}

// Closes the descriptor it holds.
class Descriptor {
 public:
  explicit Descriptor(int fd) : fd_(fd) {}
  ~Descriptor() {
    if (fd_ >= 0) ::close(fd_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;

  int get() const { return fd_; }

 private:
  int fd_;
};

// A regular file opened for reading.
class Input {
 public:
  // Without O_NONBLOCK, opening a pipe would wait for a writer.
  explicit Input(const std::string& path)
      : fd_(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)) {
    struct stat info = {};
    if (fd_.get() < 0 || ::fstat(fd_.get(), &info) != 0) fail("read", path, errno);
    if (!S_ISREG(info.st_mode)) fail_irregular("read", path);
    size_ = static_cast<size_t>(info.st_size);
  }

  int fd() const { return fd_.get(); }
  size_t size() const { return size_; }

 private:
  Descriptor fd_;
  size_t size_ = 0;
};

// Where a write to path lands: path, or what a link there points to.
std::string resolve_target(const std::string& path) {
  struct stat info = {};
  if (::stat(path.c_str(), &info) == 0) {
    if (!S_ISREG(info.st_mode)) fail_irregular("write", path);
    std::error_code error;
    const auto resolved = std::filesystem::canonical(path, error);
    if (error) fail("write", path, error.value());
    return resolved.string();
  }
  if (errno != ENOENT) fail("write", path, errno);
  if (::lstat(path.c_str(), &info) == 0) {  // renaming would replace the link itself
    throw Error(ErrorCode::kIo, fmt::format("cannot write {}: dangling link", path));
  }
  return path;
}

// A new file beside target that is removed unless commit() succeeded.
class TemporaryFile {
 public:
  explicit TemporaryFile(const std::string& target) : target_(target) {
    static std::atomic<unsigned> counter{0};
    do {
      path_ = fmt::format("{}.{}-{}.tmp", target, ::getpid(), counter++);
      fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    } while (fd_ < 0 && errno == EEXIST);
    if (fd_ < 0) path_.clear();
  }
  ~TemporaryFile() {
    if (fd_ >= 0) ::close(fd_);
    if (!path_.empty()) ::unlink(path_.c_str());
  }
  TemporaryFile(const TemporaryFile&) = delete;
  TemporaryFile& operator=(const TemporaryFile&) = delete;

  bool is_open() const { return fd_ >= 0; }

  // Each returns false and leaves the reason in errno.
  bool write(std::span<const uint8_t> bytes) {
    while (!bytes.empty()) {
      const ssize_t n = ::write(fd_, bytes.data(), bytes.size());
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return false;
      bytes = bytes.subspan(static_cast<size_t>(n));
    }
    return true;
  }

  bool commit() {
    if (::fsync(fd_) != 0) return false;
    if (::close(std::exchange(fd_, -1)) != 0) return false;
    if (::rename(path_.c_str(), target_.c_str()) != 0) return false;
    path_.clear();
    return true;
  }

 private:
  std::string target_;
  std::string path_;
  int fd_ = -1;
};

// Makes a rename in the folder of path survive a power cut, where the file system can.
void sync_folder(const std::string& path) {
  const auto folder = std::filesystem::path(path).parent_path();
  const char* name = folder.empty() ? "." : folder.c_str();
  const Descriptor fd(::open(name, O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (fd.get() >= 0) ::fsync(fd.get());
}

}  // namespace

std::vector<uint8_t> read_file(const std::string& path) {
  const Input file(path);
  std::vector<uint8_t> bytes(file.size());
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::read(file.fd(), bytes.data() + done, bytes.size() - done);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail("read", path, errno);
    if (n == 0) break;  // the file became shorter meanwhile
    done += static_cast<size_t>(n);
  }
  bytes.resize(done);
  return bytes;
}

void write_file(const std::string& path, std::span<const uint8_t> bytes) {
  const std::string target = resolve_target(path);
  TemporaryFile file(target);
  if (!file.is_open() || !file.write(bytes) || !file.commit()) fail("write", path, errno);
  sync_folder(target);
}

MappedFile::MappedFile(const std::string& path) {
  const Input file(path);
  if (file.size() == 0) return;  // mmap refuses length 0
  void* data = ::mmap(nullptr, file.size(), PROT_READ, MAP_PRIVATE, file.fd(), 0);
  if (data == MAP_FAILED) fail("read", path, errno);
  data_ = static_cast<const uint8_t*>(data);
  size_ = file.size();
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<uint8_t*>(data_), size_);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

}  // namespace headq
