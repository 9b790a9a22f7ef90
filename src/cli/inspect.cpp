#include <CLI/CLI.hpp>

#include "cli/commands.h"
#include "headq/error.h"

namespace headq {

CLI::App* add_inspect_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("inspect", "Show what a profile or a model holds");
  command->callback([] { throw Error(ErrorCode::kUnsupported, "not built yet"); });
  return command;
}

}  // namespace headq
