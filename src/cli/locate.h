#pragma once

#include <string>

namespace headq {

// The file a program name stands for: itself when it has a slash, else the one in the bin folder of
// the llama.cpp that this headq was built for, else the first one in PATH. Throws Error(kIo) when
// there is none that can be run.
std::string find_program(const std::string& name);

}  // namespace headq
