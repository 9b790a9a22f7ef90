#pragma once

#include <string>
#include <vector>

namespace headq {

// What `headq with` has to know of the command lines of llama.cpp's programs.

// The model files that args name (-m, --model), in order.
std::vector<std::string> model_arguments(const std::vector<std::string>& args);

// The command line [program, args...] with what puts the KV cache and attention on the plugin's
// device: --device HEADQ0 -ngl 999 -fa on, as far as args do not say the same. Where they name a
// draft model or an image projector, these stay on the CPU. Everything in args is passed on
// unchanged and in order. n_layer: the most layers of a model in args, 0 when unknown.
//
// Throws Error(kInvalidArgument) when program takes no such flags, or args contradict them.
std::vector<std::string> program_command(const std::string& program,
                                         const std::vector<std::string>& args, int n_layer);

// Throws Error(kInvalidArgument) when one of llama.cpp's own environment variables (LLAMA_ARG_*)
// would keep the cache off the device or give it another type. get: getenv or a stand-in.
void check_program_environment(const char* (*get)(const char* name));

}  // namespace headq
