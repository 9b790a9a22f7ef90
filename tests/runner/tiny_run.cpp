#include "runner/tiny_run.h"

#include <gtest/gtest.h>

#include <regex>

#include "models/tiny_models.h"
#include "runner/run_program.h"

namespace headq::testing {

const std::string& tiny_model_path() {
  static const std::string path = write_tiny_model({.family = TinyFamily::kLlama}, scratch_dir());
  return path;
}

const std::string& tiny_text_path() {
  static const std::string path = scratch_file("text.txt", tiny_text(1200, 5) + "\n");
  return path;
}

ChunkedText tiny_chunks(const Model& model, int n_ctx) {
  const TextFile file = read_text(tiny_text_path());
  return ChunkedText(file.name, model.tokenize(file.text), n_ctx, model.bos());
}

std::string llama_perplexity(const std::vector<std::string>& args,
                             const std::vector<std::string>& environment,
                             const std::string& wanted) {
  std::vector<std::string> all = {std::string(HEADQ_LLAMA_BIN) + "/llama-perplexity",
                                  "-m",
                                  tiny_model_path(),
                                  "-f",
                                  tiny_text_path(),
                                  "-fa",
                                  "on",
                                  "-t",
                                  "2"};
  all.insert(all.end(), args.begin(), args.end());
  for (int i = 0; i < 20; ++i) {
    const ProgramResult run = run_program(all, environment);
    if (run.exit_code != 0) {
      ADD_FAILURE() << "exit code " << run.exit_code << ": " << run.err;
      return "";
    }
    if (run.out.find(wanted) != std::string::npos) return run.out + run.err;
    if (run.err.find(wanted) != std::string::npos) return run.out + run.err;
  }
  return "";
}

std::optional<std::pair<std::string, std::string>> find_estimate(const std::string& text,
                                                                 const std::string& label) {
  const size_t at = text.find(label);
  if (at == std::string::npos) return std::nullopt;
  const std::string rest = text.substr(at + label.size(), 80);
  std::smatch found;
  if (!std::regex_search(rest, found, std::regex(R"(([0-9.]+)[^0-9]+([0-9.]+))"))) {
    return std::nullopt;
  }
  return std::pair(found[1].str(), found[2].str());
}

}  // namespace headq::testing
