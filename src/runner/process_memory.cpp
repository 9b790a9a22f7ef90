#include "runner/process_memory.h"

#include <fmt/format.h>

#include <charconv>
#include <fstream>
#include <sstream>

#include "headq/error.h"

namespace headq {
namespace {

// The value of "\nNAME:   123 kB", in bytes.
uint64_t field(const std::string& status, const std::string& name) {
  const size_t at = ("\n" + status).find("\n" + name + ":");
  uint64_t kib = 0;
  if (at != std::string::npos) {
    const size_t digit = status.find_first_of("0123456789", at + name.size());
    const char* const end = status.data() + status.size();
    if (digit != std::string::npos &&
        std::from_chars(status.data() + digit, end, kib).ec == std::errc()) {
      return kib * 1024;
    }
  }
  throw Error(ErrorCode::kCorrupt, fmt::format("/proc/self/status has no {}", name));
}

}  // namespace

ProcessMemory ProcessMemory::parse(const std::string& status) {
  return {.resident = field(status, "VmRSS"),
          .peak = field(status, "VmHWM"),
          .files = field(status, "RssFile")};
}

ProcessMemory ProcessMemory::read() {
  std::ifstream file("/proc/self/status");
  std::ostringstream text;
  text << file.rdbuf();
  if (!file) throw Error(ErrorCode::kIo, "cannot read /proc/self/status");
  return parse(text.str());
}

void reset_peak_memory() {
  constexpr const char* kPath = "/proc/self/clear_refs";
  std::ofstream file(kPath);
  file << "5" << std::flush;
  if (!file) throw Error(ErrorCode::kIo, fmt::format("cannot write {}", kPath));
}

uint64_t peak_above(const ProcessMemory& before, const ProcessMemory& after) {
  const uint64_t model = after.files > before.files ? after.files - before.files : 0;
  const uint64_t base = before.resident + model;
  return after.peak > base ? after.peak - base : 0;
}

}  // namespace headq
