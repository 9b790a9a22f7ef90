#pragma once

#include <string>

namespace headq {

// Finds out before a long run that a file cannot be written after it. Throws Error(kIo) with the
// reason of the operating system; leaves nothing behind.
void check_writable(const std::string& path);

}  // namespace headq
