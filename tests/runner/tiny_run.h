#pragma once

// What the tests of the runner run: a tiny model, a text, and llama.cpp's own program on both.

#include <optional>
#include <string>
#include <vector>

#include "runner/model.h"
#include "runner/text.h"

namespace headq::testing {

// A tiny Llama and a text of about 6,300 of its tokens; written once a test program.
const std::string& tiny_model_path();
const std::string& tiny_text_path();

ChunkedText tiny_chunks(const Model& model, int n_ctx);

// Output of llama-perplexity (stdout, then stderr) on the tiny model and text, in the first run
// whose output has `wanted` in it. Its log thread may lose the last lines when the program ends, so
// there are several tries; "" when none succeeds.
std::string llama_perplexity(const std::vector<std::string>& args,
                             const std::vector<std::string>& environment,
                             const std::string& wanted);

// The two numbers of "<label> a <separator> b" in text, or nothing.
std::optional<std::pair<std::string, std::string>> find_estimate(const std::string& text,
                                                                 const std::string& label);

}  // namespace headq::testing
