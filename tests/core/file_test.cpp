#include "core/file.h"

#include <gtest/gtest.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "core/error_of.h"
#include "core/temp_dir.h"

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

// Runs in a child of its own: mounts a 64 KiB file system on dir and returns the message of a write
// of 1 MiB and what the folder holds then; "no mount" where mounting is not allowed.
std::string write_to_full_disk(const std::string& dir) {
  const int flags = CLONE_NEWNS | (geteuid() == 0 ? 0 : CLONE_NEWUSER);
  if (unshare(flags) != 0 || mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
      mount("none", dir.c_str(), "tmpfs", 0, "size=64k") != 0) {
    return "no mount";
  }
  put_file(dir + "/a", bytes_of("old"));
  std::string out;
  const std::vector<uint8_t> large(1 << 20, 7);
  if (const auto error = testing::error_of([&] { write_file(dir + "/a", large); })) {
    out = error->what();
  }
  for (const auto& entry : std::filesystem::directory_iterator(dir)) {
    out += " | " + entry.path().filename().string();
  }
  const std::vector<uint8_t> kept = get_file(dir + "/a");
  return out + " = " + std::string(kept.begin(), kept.end());
}

TEST(WriteFile, SaysSoWhenTheDiskIsFull) {
  const TempDir dir;
  int ends[2];
  ASSERT_EQ(pipe(ends), 0);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    const std::string out = write_to_full_disk(dir.path());
    _exit(write(ends[1], out.data(), out.size()) == static_cast<ssize_t>(out.size()) ? 0 : 1);
  }
  close(ends[1]);
  char text[4096];
  const ssize_t n = read(ends[0], text, sizeof text);
  close(ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_EQ(status, 0);
  const std::string out(text, static_cast<size_t>(std::max<ssize_t>(n, 0)));
  if (out == "no mount") GTEST_SKIP() << "mounting a small file system is not allowed here";
  EXPECT_EQ(out, "cannot write " + dir.file("a") + ": No space left on device | a = old");
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
