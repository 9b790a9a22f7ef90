#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace headq {

// Threads of the machine, at least 1.
int default_threads();

// -t of a command that computes; threads holds the default.
void add_threads_option(CLI::App& command, int& threads);

// --format of a command that prints a table, JSON or more; format holds the default.
void add_format_option(CLI::App& command, std::string& format,
                       const std::vector<std::string>& formats = {"table", "json"});

}  // namespace headq
