// headq diagnose as a user meets it, on tiny models.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "core/file.h"
#include "models/tiny_models.h"

namespace headq {
namespace {

using testing::ProgramResult;
using testing::run_headq;
using testing::scratch_dir;
using testing::scratch_file;
using testing::TinyFamily;

using Arguments = std::vector<std::string>;

std::string model_of(TinyFamily family) {
  return testing::write_tiny_model({.family = family}, scratch_dir());
}

const std::string& text_path() {
  static const std::string path = scratch_file("diagnose.txt", testing::tiny_text(800, 5) + "\n");
  return path;
}

Arguments diagnose(TinyFamily family, const Arguments& more) {
  Arguments args = {"diagnose", "-m", model_of(family), "-f", text_path()};
  for (const char* arg :
       {"-c", "256", "--queries", "8", "-t", "2", "--chunks", "2", "--calibration-chunks", "2"}) {
    args.push_back(arg);
  }
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// args with another value behind a flag.
Arguments replaced(Arguments args, const std::string& flag, const std::string& value) {
  *(std::find(args.begin(), args.end(), flag) + 1) = value;
  return args;
}

std::string file_text(const std::string& path) {
  const std::vector<uint8_t> bytes = read_file(path);
  return {bytes.begin(), bytes.end()};
}

TEST(DiagnoseCommand, ReportsEveryExperimentTheSameWithAnyThreads) {
  const std::string out = scratch_dir() + "/report.json";
  const ProgramResult tables = run_headq(diagnose(TinyFamily::kLlama, {"-o", out}));
  ASSERT_EQ(tables.exit_code, 0) << tables.err;
  EXPECT_EQ(tables.err, "");
  for (const char* text : {"1. Which measure", "2. Counterexamples", "3. A vector",
                           "4. Side code directions", "5. Direction", "8. Route flips",
                           "Noise floor", "diagnose.txt: 128 queries of 4 KV heads"}) {
    EXPECT_NE(tables.out.find(text), std::string::npos) << text;
  }
  const ProgramResult json =
      run_headq(replaced(diagnose(TinyFamily::kLlama, {"--format", "json"}), "-t", "1"));
  ASSERT_EQ(json.exit_code, 0) << json.err;
  EXPECT_EQ(json.out, file_text(out));

  const auto report = nlohmann::json::parse(json.out);
  EXPECT_EQ(report["n_heads"], 4);
  EXPECT_EQ(report["n_queries"], 128);
  EXPECT_EQ(report["n_ctx"], 256);
  EXPECT_EQ(report["noise_floor"]["identity_kl_max"], 0.0);
  EXPECT_LT(report["noise_floor"]["f16_kl"]["value"], 1e-4);
  const auto& experiments = report["experiments"];
  for (const char* name :
       {"metrics", "counterexamples", "null_space", "deployability", "direction", "route_flips"}) {
    EXPECT_TRUE(experiments.contains(name)) << name;
  }
  EXPECT_EQ(experiments["metrics"]["key_kl"]["spearman"][3]["metric"], "fisher");
  EXPECT_GT(experiments["metrics"]["key_kl"]["spearman"][3]["overall"]["value"], 0.9);
  for (const auto& dense : experiments["null_space"]["dense"]) EXPECT_LT(dense["kl_max"], 1e-8);
  EXPECT_GT(experiments["direction"]["wrong"]["kl"]["value"],
            experiments["direction"]["right"]["kl"]["value"]);
  double share = 0;
  for (const auto& regime : experiments["route_flips"]["regimes"]) {
    share += regime["share"]["value"].get<double>();
  }
  EXPECT_NEAR(share, 1.0, 1e-12);
}

TEST(DiagnoseCommand, KnowsSoftcapsAndWindows) {
  // Layers whose window is shorter than what stays dense have nothing to diagnose.
  const std::string model =
      testing::write_tiny_model({.family = TinyFamily::kGemma2, .n_swa = 32}, scratch_dir());
  const ProgramResult result =
      run_headq(replaced(diagnose(TinyFamily::kGemma2, {"--format", "json"}), "-m", model));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report["n_heads"], 2);
  const auto& layers = report["experiments"]["route_flips"]["layers"];
  ASSERT_EQ(layers.size(), 1u);
  EXPECT_EQ(layers[0]["layer"], 1);
}

TEST(DiagnoseCommand, TakesAsManyHeadsAsAsked) {
  const ProgramResult result =
      run_headq(diagnose(TinyFamily::kQwen2, {"--format", "json", "--heads", "2"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out)["n_heads"], 2);
}

TEST(DiagnoseCommand, RefusesScoresThatItCannotSee) {
  EXPECT_REFUSAL(run_headq(diagnose(TinyFamily::kBloom, {})), 1, "ALiBi");
  EXPECT_REFUSAL(run_headq(diagnose(TinyFamily::kGptOss, {})), 1, "learned attention sinks");
}

TEST(DiagnoseCommand, RefusesBadUseAndLeavesNothingBehind) {
  const std::string folder = scratch_dir() + "/diagnose-nothing";
  std::filesystem::create_directory(folder);
  const auto attempt = [&](const Arguments& more) {
    Arguments all = {"-o", folder + "/r.json"};
    all.insert(all.end(), more.begin(), more.end());
    return run_headq(diagnose(TinyFamily::kLlama, all));
  };
  EXPECT_REFUSAL(attempt({"--format", "xml"}), 2, "xml");
  EXPECT_REFUSAL(attempt({"--heads", "0"}), 2, "--heads 0 is not in 1..");
  EXPECT_REFUSAL(attempt({"junk"}), 2, "junk");
  const auto with = [&](const std::string& flag, const std::string& value) {
    return run_headq(
        replaced(diagnose(TinyFamily::kLlama, {"-o", folder + "/r.json"}), flag, value));
  };
  EXPECT_REFUSAL(with("-c", "255"), 2, "-c 255 is not in 256..4096");
  EXPECT_REFUSAL(with("--queries", "129"), 2, "--queries 129 is not in 1..128");
  EXPECT_REFUSAL(with("--chunks", "999"), 2, "--chunks 999 is not in 1..");
  EXPECT_REFUSAL(with("--calibration-chunks", "0"), 2, "--calibration-chunks 0");
  EXPECT_REFUSAL(with("-f", folder + "/missing.txt"), 1, "missing.txt");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(DiagnoseCommand, AReportThatCannotBeWrittenIsRefusedBeforeTheRun) {
  // A model that does not exist would be the next thing to fail.
  const auto attempt = [](const std::string& out) {
    return run_headq({"diagnose", "-m", "/nowhere/model.gguf", "-f", text_path(), "-o", out});
  };
  EXPECT_REFUSAL(attempt("/nowhere/r.json"), 1, "/nowhere/r.json");
  EXPECT_REFUSAL(attempt(scratch_dir()), 1, "not a regular file");
  EXPECT_REFUSAL(attempt(scratch_dir() + "/fine.json"), 1, "/nowhere/model.gguf");
}

}  // namespace
}  // namespace headq
