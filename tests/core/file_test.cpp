#include "core/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>

#include "core/error_of.h"
#include "core/temp_dir.h"

namespace headq {
namespace {

// A disk that misbehaves while this lives, through the write() and fsync() below.
class FullDisk {
 public:
  enum Where { kNowhere, kAtWrite, kAtSync, kShortWrites };
  explicit FullDisk(Where where) { where_ = where; }
  ~FullDisk() { where_ = kNowhere; }
  static Where where() { return where_; }

 private:
  static inline Where where_ = kNowhere;
};

}  // namespace
}  // namespace headq

// These stand before the C library's for everything that is linked into this program.
extern "C" ssize_t write(int fd, const void* data, size_t n) {
  using headq::FullDisk;
  if (FullDisk::where() == FullDisk::kAtWrite) {
    errno = ENOSPC;
    return -1;
  }
  if (FullDisk::where() == FullDisk::kShortWrites) n = std::min<size_t>(n, 7);
  return syscall(SYS_write, fd, data, n);
}

extern "C" int fsync(int fd) {
  if (headq::FullDisk::where() == headq::FullDisk::kAtSync) {
    errno = ENOSPC;
    return -1;
  }
  return static_cast<int>(syscall(SYS_fsync, fd));
}

namespace headq {
namespace {

using testing::get_file;
using testing::put_file;
using testing::TempDir;

std::vector<uint8_t> bytes_of(const std::string& text) { return {text.begin(), text.end()}; }

// Files may grow to n bytes and no further while this lives.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t n) {
    old_handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &old_);
    const rlimit limit = {.rlim_cur = n, .rlim_max = old_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &old_);
    std::signal(SIGXFSZ, old_handler_);
  }

 private:
  rlimit old_;
  void (*old_handler_)(int);
};

TEST(WriteFile, WritesANewFileAndNothingElse) {
  const TempDir dir;
  write_file(dir.file("a"), bytes_of("hello"));
  EXPECT_EQ(get_file(dir.file("a")), bytes_of("hello"));
  EXPECT_EQ(dir.names(), std::vector<std::string>{"a"});
}

TEST(WriteFile, ReplacesAFile) {
  const TempDir dir;
  put_file(dir.file("a"), bytes_of("a longer text that was there before"));
  write_file(dir.file("a"), bytes_of("new"));
  EXPECT_EQ(get_file(dir.file("a")), bytes_of("new"));
  EXPECT_EQ(dir.names(), std::vector<std::string>{"a"});
}

TEST(WriteFile, WritesAnEmptyFile) {
  const TempDir dir;
  write_file(dir.file("a"), {});
  EXPECT_EQ(get_file(dir.file("a")).size(), 0u);
}

TEST(WriteFile, FollowsALink) {
  const TempDir dir;
  put_file(dir.file("real"), bytes_of("old"));
  std::filesystem::create_symlink("real", dir.file("link"));
  write_file(dir.file("link"), bytes_of("new"));
  EXPECT_TRUE(std::filesystem::is_symlink(dir.file("link")));
  EXPECT_EQ(get_file(dir.file("real")), bytes_of("new"));
}

TEST(WriteFile, LeavesNothingBehindWhenAWriteFails) {
  const TempDir dir;
  put_file(dir.file("a"), bytes_of("old"));
  {
    const FileSizeLimit limit(4096);
    const std::vector<uint8_t> large(1 << 20, 7);
    EXPECT_ERROR(write_file(dir.file("a"), large), ErrorCode::kIo,
                 "cannot write " + dir.file("a") + ": File too large");
    EXPECT_ERROR(write_file(dir.file("b"), large), ErrorCode::kIo, "File too large");
  }
  EXPECT_EQ(get_file(dir.file("a")), bytes_of("old"));
  EXPECT_EQ(dir.names(), std::vector<std::string>{"a"});
}

TEST(WriteFile, RefusesFoldersThatAreNotThere) {
  const TempDir dir;
  EXPECT_ERROR(write_file(dir.file("no/a"), bytes_of("x")), ErrorCode::kIo,
               "no/a: No such file or directory");
}

TEST(WriteFile, RefusesToReplaceWhatIsNoRegularFile) {
  const TempDir dir;
  EXPECT_ERROR(write_file(dir.path(), bytes_of("x")), ErrorCode::kIo, "not a regular file");
  ASSERT_EQ(mkfifo(dir.file("pipe").c_str(), 0600), 0);
  EXPECT_ERROR(write_file(dir.file("pipe"), bytes_of("x")), ErrorCode::kIo, "not a regular file");
  EXPECT_ERROR(write_file("/dev/null", bytes_of("x")), ErrorCode::kIo, "not a regular file");
  EXPECT_TRUE(std::filesystem::is_character_file("/dev/null"));
  std::filesystem::create_symlink("nowhere", dir.file("link"));
  EXPECT_ERROR(write_file(dir.file("link"), bytes_of("x")), ErrorCode::kIo, "dangling link");
  EXPECT_EQ(dir.names(), (std::vector<std::string>{"link", "pipe"}));
}

TEST(WriteFile, SaysSoWhenTheDiskIsFull) {
  for (const FullDisk::Where where : {FullDisk::kAtWrite, FullDisk::kAtSync}) {
    const TempDir dir;
    put_file(dir.file("a"), bytes_of("old"));
    {
      const FullDisk full(where);
      EXPECT_ERROR(write_file(dir.file("a"), bytes_of("new")), ErrorCode::kIo,
                   "cannot write " + dir.file("a") + ": No space left on device");
    }
    EXPECT_EQ(get_file(dir.file("a")), bytes_of("old"));
    EXPECT_EQ(dir.names(), std::vector<std::string>{"a"});
  }
}

TEST(WriteFile, GoesOnAfterAShortWrite) {
  const TempDir dir;
  std::vector<uint8_t> data(1000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 7);
  {
    const FullDisk slow(FullDisk::kShortWrites);
    write_file(dir.file("a"), data);
  }
  EXPECT_EQ(get_file(dir.file("a")), data);
}

TEST(ReadFile, GivesTheWholeFile) {
  const TempDir dir;
  std::vector<uint8_t> data(100000);
  for (size_t i = 0; i < data.size(); ++i) data[i] = static_cast<uint8_t>(i * 7);
  put_file(dir.file("a"), data);
  EXPECT_EQ(read_file(dir.file("a")), data);
}

TEST(ReadFile, SaysWhyItCannot) {
  const TempDir dir;
  EXPECT_ERROR(read_file(dir.file("a")), ErrorCode::kIo,
               "cannot read " + dir.file("a") + ": No such file or directory");
  EXPECT_ERROR(read_file(dir.path()), ErrorCode::kIo, "not a regular file");
  ASSERT_EQ(mkfifo(dir.file("pipe").c_str(), 0600), 0);
  EXPECT_ERROR(read_file(dir.file("pipe")), ErrorCode::kIo, "not a regular file");
}

TEST(MappedFile, HoldsTheFile) {
  const TempDir dir;
  put_file(dir.file("a"), bytes_of("hello"));
  MappedFile first(dir.file("a"));
  const MappedFile file(std::move(first));
  EXPECT_EQ(std::vector<uint8_t>(file.bytes().begin(), file.bytes().end()), bytes_of("hello"));
  EXPECT_TRUE(first.bytes().empty());
}

TEST(MappedFile, TakesAnEmptyFile) {
  const TempDir dir;
  put_file(dir.file("a"), {});
  EXPECT_TRUE(MappedFile(dir.file("a")).bytes().empty());
}

TEST(MappedFile, SaysWhyItCannot) {
  const TempDir dir;
  EXPECT_ERROR(MappedFile(dir.file("a")), ErrorCode::kIo, "No such file or directory");
  EXPECT_ERROR(MappedFile(dir.path()), ErrorCode::kIo, "not a regular file");
}

}  // namespace
}  // namespace headq
