#include "cli/locate.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <sstream>

#include "headq/error.h"

namespace headq {
namespace {

namespace fs = std::filesystem;

bool is_runnable(const fs::path& path) {
  std::error_code ignored;
  return fs::is_regular_file(path, ignored) && access(path.c_str(), X_OK) == 0;
}

}  // namespace

std::string find_program(const std::string& name) {
  if (name.find('/') != std::string::npos) {
    if (is_runnable(name)) return name;
    throw Error(ErrorCode::kIo, fmt::format("{} is no program that can be run", name));
  }
  const fs::path built = fs::path(HEADQ_LLAMA_BIN_DIR) / name;
  if (!name.empty() && is_runnable(built)) return built.string();
  const char* const folders = std::getenv("PATH");
  std::istringstream list(folders != nullptr ? folders : "");
  for (std::string folder; !name.empty() && std::getline(list, folder, ':');) {
    const fs::path path = fs::path(folder.empty() ? "." : folder) / name;
    if (is_runnable(path)) return path.string();
  }
  throw Error(ErrorCode::kIo,
              fmt::format("no program '{}' in {} or PATH", name, HEADQ_LLAMA_BIN_DIR));
}

}  // namespace headq
