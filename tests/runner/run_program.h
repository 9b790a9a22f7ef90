#pragma once

#include <string>
#include <vector>

namespace headq::testing {

struct ProgramResult {
  int exit_code = -1;  // 128 + signal when it was killed by one
  std::string out;
  std::string err;
};

// Runs a program (args[0] is its path) with extra NAME=value settings in its environment and waits
// for it. Standard input is empty.
ProgramResult run_program(const std::vector<std::string>& args,
                          const std::vector<std::string>& environment = {});

// A fresh folder that is removed with everything in it at the end of the test program.
std::string scratch_dir();

// Writes text to a new file of that name in scratch_dir() and returns the path.
std::string scratch_file(const std::string& name, const std::string& text);

}  // namespace headq::testing
