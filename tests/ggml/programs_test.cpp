// The real programs, unchanged, with the plugin loaded by GGML_BACKEND_PATH.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <fstream>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

#include "ggml/process.h"
#include "ggml/session.h"

namespace headq::testing {
namespace {

using nlohmann::json;
using ::testing::HasSubstr;

std::string program(const std::string& name) {
  return std::string(HEADQ_TEST_LLAMA_BIN) + "/" + name;
}

const std::string& model_path() {
  static const std::string path =
      tiny_model_path({.family = TinyFamily::kLlama, .head_dim = 64, .n_ctx_train = 2048});
  return path;
}

std::vector<std::string> on_plugin(std::vector<std::string> args) {
  for (const char* flag : {"--device", "HEADQ0", "-ngl", "99", "-fa", "on"}) args.push_back(flag);
  return args;
}

std::map<std::string, std::string> plugin_environment(const std::string& kv) {
  return {{"GGML_BACKEND_PATH", HEADQ_TEST_PLUGIN}, {"HEADQ_KV", kv}};
}

struct Ended {
  int status;
  std::string output;
};

// Runs a program to its end, again when `mark` is not in its output: llama.cpp's programs write
// from a thread that the exit may cut short.
Ended run_program(const std::vector<std::string>& args,
                  const std::map<std::string, std::string>& env, const std::string& mark) {
  Ended ended;
  for (int attempt = 0; attempt < 20; ++attempt) {
    Process process(args, env);
    ended.status = process.wait(60.0);
    ended.output = process.output();
    if (ended.output.find(mark) != std::string::npos) break;
  }
  return ended;
}

class Server {
 public:
  explicit Server(const std::string& kv, const std::vector<std::string>& extra = {})
      : port_(free_port()), process_(arguments(extra), plugin_environment(kv)) {
    for (int i = 0; i < 600 && process_.is_running(); ++i) {
      if (http("GET", port_, "/health", "", 2.0).status == 200) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    throw std::runtime_error("llama-server does not answer:\n" + process_.output());
  }

  // Throws with the server's log when the answer is not 200.
  json post(const std::string& path, const json& body) {
    const HttpAnswer answer = http("POST", port_, path, body.dump(), 30.0);
    if (answer.status != 200) {
      throw std::runtime_error(path + ": " + std::to_string(answer.status) + " " + answer.body +
                               "\n" + process_.output());
    }
    return json::parse(answer.body);
  }

  json complete(const std::string& prompt, int slot) {
    return post("/completion", {{"prompt", prompt},
                                {"n_predict", 24},
                                {"temperature", 0.0},
                                {"ignore_eos", true},
                                {"cache_prompt", true},
                                {"id_slot", slot}});
  }

 private:
  std::vector<std::string> arguments(const std::vector<std::string>& extra) const {
    std::vector<std::string> args =
        on_plugin({program("llama-server"), "-m", model_path(), "-c", "4096", "--parallel", "4",
                   "--host", "127.0.0.1", "--port", std::to_string(port_), "--threads", "2",
                   "--slot-save-path", scratch_dir(), "--no-webui"});
    args.insert(args.end(), extra.begin(), extra.end());
    return args;
  }

  int port_;
  Process process_;
};

TEST(LlamaServer, AnswersFourRequestsAtOnce) {
  Server server("kivi2+hq4x4@random/kivi2");
  std::vector<std::future<json>> answers;
  for (int slot = 0; slot < 4; ++slot) {
    answers.push_back(std::async(std::launch::async, [&server, slot] {
      return server.complete(tiny_text(60, 1 + slot), slot);
    }));
  }
  for (auto& answer : answers) {
    const json result = answer.get();
    EXPECT_EQ(result.at("tokens_predicted"), 24);
    EXPECT_FALSE(result.at("content").get<std::string>().empty());
  }
}

TEST(LlamaServer, AnswersTheSameAloneAndInCompany) {
  // Own streams: what the other slots do must not show. Greedy text of a dense cache.
  Server server("dense", {"--no-kv-unified"});
  const std::string prompt = tiny_text(60, 1);
  const std::string alone = server.complete(prompt, 0).at("content");
  std::vector<std::future<json>> others;
  for (int slot = 1; slot < 4; ++slot) {
    others.push_back(std::async(std::launch::async, [&server, slot] {
      return server.complete(tiny_text(50, 7 + slot), slot);
    }));
  }
  EXPECT_EQ(server.complete(prompt, 0).at("content"), alone);
  for (auto& other : others) other.get();
}

TEST(LlamaServer, SavesAndRestoresASlot) {
  Server server("kivi4");
  const std::string prompt = tiny_text(80, 3);
  const json first = server.complete(prompt, 0);
  const json saved = server.post("/slots/0?action=save", {{"filename", "slot.bin"}});
  EXPECT_GT(saved.at("n_saved"), 80);
  server.complete(tiny_text(80, 4), 0);  // something else in the slot
  const json restored = server.post("/slots/0?action=restore", {{"filename", "slot.bin"}});
  EXPECT_EQ(restored.at("n_restored"), saved.at("n_saved"));
  const json again = server.complete(prompt, 0);
  EXPECT_EQ(again.at("tokens_predicted"), 24);
  // All but the last token of the prompt come from the restored cache.
  EXPECT_LE(again.at("timings").at("prompt_n"), 2);
  server.post("/slots/0?action=erase", json::object());
}

TEST(LlamaServer, ShiftsAFullContext) {
  Server server("kivi4", {"--context-shift", "-c", "1024"});  // 256 cells a slot
  const json result = server.post(
      "/completion",
      {{"prompt", tiny_text(30, 5)}, {"n_predict", 400}, {"ignore_eos", true}, {"id_slot", 1}});
  EXPECT_EQ(result.at("tokens_predicted"), 400);
}

double perplexity(const std::vector<std::string>& args,
                  const std::map<std::string, std::string>& env) {
  const std::string mark = "Final estimate: PPL = ";
  const Ended ended = run_program(args, env, mark);
  EXPECT_EQ(ended.status, 0) << ended.output;
  const size_t at = ended.output.find(mark);
  EXPECT_NE(at, std::string::npos) << ended.output;
  return at == std::string::npos ? 0.0 : std::stod(ended.output.substr(at + mark.size()));
}

TEST(LlamaPerplexity, RunsUnchanged) {
  const std::string text_path = scratch_dir() + "/text.txt";
  std::ofstream(text_path) << tiny_text(700, 6);
  const std::vector<std::string> args = {program("llama-perplexity"),
                                         "-m",
                                         model_path(),
                                         "-f",
                                         text_path,
                                         "-c",
                                         "512",
                                         "--chunks",
                                         "4",
                                         "-t",
                                         "2"};
  const double cpu = perplexity(args, {});
  const double dense = perplexity(on_plugin(args), plugin_environment("dense"));
  const double fine = perplexity(on_plugin(args), plugin_environment("kivi8"));
  const double coarse = perplexity(on_plugin(args), plugin_environment("kivi2"));
  std::vector<std::string> loaded_only = args;
  loaded_only.insert(loaded_only.end(), {"--device", "none"});
  EXPECT_EQ(perplexity(loaded_only, plugin_environment("kivi2")), cpu);
  EXPECT_NEAR(dense, cpu, 1e-3 * cpu);
  EXPECT_NEAR(fine, cpu, 5e-3 * cpu);
  EXPECT_GT(std::abs(coarse - cpu), 5e-3 * cpu);
}

TEST(LlamaPerplexity, IsTheSameAtEveryInstructionSet) {
  const std::string text_path = scratch_dir() + "/text.txt";
  std::ofstream(text_path) << tiny_text(700, 6);
  const auto at_level = [&](const std::string& isa) {
    std::map<std::string, std::string> env = plugin_environment("kivi2+hq4x4@random/token4h");
    env["HEADQ_ISA"] = isa;
    return perplexity(on_plugin({program("llama-perplexity"), "-m", model_path(), "-f", text_path,
                                 "-c", "512", "--chunks", "2", "-t", "2"}),
                      env);
  };
  const double scalar = at_level("scalar");
  EXPECT_EQ(at_level(""), scalar);  // the machine's best
  if (__builtin_cpu_supports("avx2") != 0) {
    EXPECT_EQ(at_level("avx2"), scalar);
  }
}

TEST(LlamaBench, RunsUnchanged) {
  const Ended ended = run_program({program("llama-bench"),
                                   "-m",
                                   model_path(),
                                   "-p",
                                   "96",
                                   "-n",
                                   "16",
                                   "-d",
                                   "200",
                                   "-r",
                                   "1",
                                   "-t",
                                   "2",
                                   "-dev",
                                   "HEADQ0",
                                   "-ngl",
                                   "99",
                                   "-fa",
                                   "on",
                                   "-o",
                                   "json"},
                                  plugin_environment("kivi2"), "\n]");
  ASSERT_EQ(ended.status, 0) << ended.output;
  const json rows = json::parse(ended.output.substr(ended.output.find("[\n")), nullptr, false);
  ASSERT_FALSE(rows.is_discarded()) << ended.output;
  ASSERT_EQ(rows.size(), 2u);
  for (const json& row : rows) {
    EXPECT_EQ(row.at("devices"), "HEADQ0");
    EXPECT_GT(row.at("avg_ts").get<double>(), 0.0);
  }
}

std::vector<std::string> completion(const std::vector<std::string>& extra) {
  std::vector<std::string> args =
      on_plugin({program("llama-completion"), "-m", model_path(), "-p", tiny_text(50, 8), "-n",
                 "32", "-no-cnv", "--ignore-eos", "-t", "2", "-c", "512"});
  args.insert(args.end(), extra.begin(), extra.end());
  return args;
}

TEST(LlamaCompletion, RunsUnchanged) {
  const Ended ended =
      run_program(completion({"-v"}), plugin_environment("kivi2"), "HEADQ KV buffer size");
  EXPECT_EQ(ended.status, 0) << ended.output;
  EXPECT_THAT(ended.output, HasSubstr("HEADQ KV buffer size"));
}

// llama-bench -v logs without a thread, so its last line is never lost.
std::vector<std::string> loud_bench(const std::vector<std::string>& extra) {
  std::vector<std::string> args = {program("llama-bench"),
                                   "-m",
                                   model_path(),
                                   "-p",
                                   "8",
                                   "-n",
                                   "0",
                                   "-r",
                                   "1",
                                   "-t",
                                   "1",
                                   "-dev",
                                   "HEADQ0",
                                   "-ngl",
                                   "99",
                                   "-fa",
                                   "on",
                                   "-v"};
  args.insert(args.end(), extra.begin(), extra.end());
  return args;
}

TEST(Programs, UnknownSpecInTheEnvironmentStopsThem) {
  const Ended ended = run_program(loud_bench({}), plugin_environment("kivi5"), "kivi5");
  EXPECT_GT(ended.status, 0);
  EXPECT_THAT(ended.output, HasSubstr("kivi5"));
}

TEST(Programs, QuantizedCacheTypeStopsThem) {
  const Ended ended = run_program(loud_bench({"-ctk", "q8_0", "-ctv", "q8_0"}),
                                  plugin_environment("kivi2"), "headq: ");
  EXPECT_GT(ended.status, 0);
  EXPECT_THAT(ended.output, HasSubstr("headq: "));
  EXPECT_THAT(ended.output, HasSubstr("q8_0"));
}

TEST(Programs, ImpossibleIsaStopsThem) {
  std::map<std::string, std::string> env = plugin_environment("kivi2");
  env["HEADQ_ISA"] = "avx1024";
  const Ended ended = run_program(loud_bench({}), env, "avx1024");
  EXPECT_GT(ended.status, 0);
  EXPECT_THAT(ended.output, HasSubstr("avx1024"));
}

}  // namespace
}  // namespace headq::testing
