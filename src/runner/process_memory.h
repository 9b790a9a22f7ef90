#pragma once

#include <cstdint>
#include <string>

namespace headq {

// Resident memory of this process, in bytes.
struct ProcessMemory {
  uint64_t resident = 0;  // now
  uint64_t peak = 0;      // the largest `resident` since reset_peak_memory() or the start
  uint64_t files = 0;     // the part of `resident` that is mapped files

  // From /proc/self/status. Throws Error(kIo).
  static ProcessMemory read();
  // From text in the form of /proc/self/status. Throws Error(kCorrupt) when a line is missing.
  static ProcessMemory parse(const std::string& status);
};

// Lets the peak start anew from what is resident now. Throws Error(kIo) where the system has no
// such thing.
void reset_peak_memory();

// What the peak rose by since `before`, without the mapped files (the model) that were read since.
uint64_t peak_above(const ProcessMemory& before, const ProcessMemory& after);

}  // namespace headq
