#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "headq/error.h"

namespace headq {

CLI::App* add_with_command(CLI::App& app, const std::vector<std::string>&) {
  CLI::App* const command = app.add_subcommand("with", "Run a llama.cpp program with the plugin");
  command->callback([] { throw Error(ErrorCode::kUnsupported, "not built yet"); });
  return command;
}

}  // namespace headq
