#include "cli/command.h"

#include <sstream>

namespace headq::testing {

ProgramResult run_headq(const std::vector<std::string>& args,
                        const std::vector<std::string>& settings) {
  std::vector<std::string> all = {HEADQ_TEST_BINARY};
  all.insert(all.end(), args.begin(), args.end());
  std::vector<std::string> environment = {
      "HEADQ_ISA=",    "HEADQ_KV=",    "HEADQ_KV_LAYER=", "HEADQ_PROFILE=",
      "HEADQ_WINDOW=", "HEADQ_SINKS=", "HEADQ_PLUGIN=",   "GGML_BACKEND_PATH="};
  environment.insert(environment.end(), settings.begin(), settings.end());
  return run_program(all, environment);
}

ProgramResult run_shell(const std::string& line) {
  return run_program({"/bin/sh", "-c", line}, {std::string("HEADQ=") + HEADQ_TEST_BINARY});
}

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> out;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) out.push_back(line);
  return out;
}

}  // namespace headq::testing
