#pragma once

#include <string>

namespace headq {

// Takes over the log of llama.cpp and ggml for the whole process: nothing is printed, the first
// error line is kept. Idempotent, thread-safe.
void capture_llama_log();

// The first line that was logged as an error since the last call, without the newline; "" when
// there was none. Clears it.
std::string take_llama_error();

}  // namespace headq
