// headq ppl and headq calibrate as a user meets them: exit codes, output, and what is left behind.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/table.h"
#include "core/file.h"
#include "models/tiny_models.h"
#include "runner/run_program.h"
#include "runner/tiny_run.h"

namespace headq {
namespace {

using testing::lines_of;
using testing::ProgramResult;
using testing::run_headq;
using testing::scratch_dir;
using testing::scratch_file;
using testing::tiny_model_path;
using testing::tiny_text_path;

using Arguments = std::vector<std::string>;

Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Arguments ppl(const Arguments& more) {
  return Arguments{"ppl", "-m", tiny_model_path(), "-f", tiny_text_path(), "-c", "256", "-t", "2"} +
         more;
}

Arguments calibrate(const std::string& output, const Arguments& more = {}) {
  return Arguments{
             "calibrate", "-m",  tiny_model_path(), "-f", tiny_text_path(), "-c", "128", "-t", "2",
             "-o",        output} +
         more;
}

// A fresh folder, so that a test sees everything that is written to it.
std::string empty_folder(const std::string& name) {
  const std::string path = scratch_dir() + "/" + name;
  std::filesystem::create_directory(path);
  return path;
}

const std::string& profile_path() {
  static const std::string path = [] {
    const std::string out = scratch_dir() + "/shared-profile.gguf";
    const ProgramResult result = run_headq(calibrate(out, {"--chunks", "4"}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return out;
  }();
  return path;
}

TEST(Ppl, PrintsOneRowForEachSpecUnderTheDenseOne) {
  const auto result = run_headq(ppl({"--chunks", "2", "--kv", "kivi2", "--kv", "kivi2+hq4x4/dense",
                                     "--profile", profile_path(), "--kv-layer", "0:dense"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  const auto lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 7u) << result.out;
  EXPECT_EQ(lines[0].rfind("keys/values", 0), 0u);
  EXPECT_EQ(lines[2].rfind("dense (reference) ", 0), 0u);
  EXPECT_EQ(lines[3].rfind("kivi2/kivi2,0:dense/dense ", 0), 0u);
  EXPECT_EQ(lines[4].rfind("kivi2+hq4x4/dense,0:dense/dense ", 0), 0u);
  EXPECT_NE(lines[6].find("text.txt: 254 tokens scored in 2 chunks; -c 256"), std::string::npos)
      << lines[6];
  EXPECT_NE(lines[6].find("window 32, sinks 4"), std::string::npos) << lines[6];
}

TEST(Ppl, TakesTheCodesThatCalibrateFitsByDefault) {
  const auto result = run_headq(
      ppl({"--chunks", "1", "--kv", "nib2.5/nib2", "--kv", "nib2.5-last8/nib2", "--kv",
           "nib2.5/dense", "--sinks", "0", "--profile", profile_path(), "--format", "json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  ASSERT_EQ(json["rows"].size(), 3u);
  EXPECT_EQ(json["rows"][0]["kv"], "nib2.5/nib2");
  EXPECT_EQ(json["rows"][1]["kv"], "nib2.5-last8/nib2");
  // The rates are what codes take, on average over heads, and nothing else is packed.
  EXPECT_DOUBLE_EQ(json["rows"][0]["cache"]["packed_bits"].get<double>(), (2.5 + 2.0) / 2);
  EXPECT_DOUBLE_EQ(json["rows"][2]["cache"]["packed_bits"].get<double>(), 2.5);
  EXPECT_GT(json["rows"][0]["kld"]["value"].get<double>(), 0.0);
  EXPECT_GT(json["rows"][1]["kld"]["value"].get<double>(),
            json["rows"][0]["kld"]["value"].get<double>());
}

TEST(Ppl, ARateThatTheProfileDoesNotHoldIsRefused) {
  const auto attempt = [](const std::string& kv) {
    return run_headq(ppl({"--kv", kv, "--profile", profile_path()}));
  };
  EXPECT_REFUSAL(
      attempt("nib2"), 1,
      "the profile holds nib2.5/nib2, not nib2/nib2: headq calibrate --kv nib2/nib2 makes "
      "one that does");
  EXPECT_REFUSAL(attempt("nib2.5@random/nib2"), 1, "holds nib2.5/nib2, not nib2.5@random/nib2");
  EXPECT_REFUSAL(attempt("kivi2/nib3"), 1, "holds nib2.5/nib2, not kivi2/nib3");
}

TEST(Ppl, AblatesFromOneCalibration) {
  const std::string text = scratch_file("ablation.txt", testing::tiny_text(600, 6));
  const auto result = run_headq(
      ppl({"--chunks", "1", "--ablate", "--kv", "nib2", "--calibrate", text, "--format", "json"}),
      {"OMP_WAIT_POLICY=passive"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  std::map<std::string, double> kld;
  for (const auto& row : json["rows"]) kld[row["kv"]] = row["kld"]["value"];
  EXPECT_EQ(kld.size(), json["rows"].size()) << "two rows have one name";
  EXPECT_GE(kld.size(), 10u);
  EXPECT_EQ(json["rows"][0]["kv"], "as it is");
  ASSERT_TRUE(kld.contains("random basis"));
  ASSERT_TRUE(kld.contains("wrong sign of the last 8 nibbles"));
  EXPECT_GT(kld["random basis"], kld["as it is"]);
  EXPECT_GT(kld["wrong sign of the last 8 nibbles"], kld["as it is"]);
}

TEST(Ppl, RefusesAblationsOfNothing) {
  EXPECT_REFUSAL(run_headq(ppl({"--ablate", "--kv", "nib2"})), 2, "--calibrate TEXT");
  EXPECT_REFUSAL(
      run_headq(ppl({"--ablate", "--kv", "nib2", "--kv", "nib3", "--calibrate", tiny_text_path()})),
      2, "--ablate takes one --kv");
  EXPECT_REFUSAL(run_headq(ppl({"--ablate", "--kv", "kivi2", "--calibrate", tiny_text_path()})), 2,
                 "--ablate takes codecs of nib, not kivi2/kivi2");
}

TEST(Ppl, JsonHoldsTheSameFigures) {
  const auto result =
      run_headq(ppl({"--chunks", "2", "--kv", "dense", "--kv", "kivi2", "--format", "json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["n_scored"], 254);
  EXPECT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][0]["kld"]["value"], 0.0);
  EXPECT_EQ(json["rows"][0]["ppl"], json["dense"]["ppl"]);
  const auto& packed = json["rows"][1];
  EXPECT_EQ(packed["kv"], "kivi2/kivi2");
  EXPECT_GT(packed["kld"]["value"], 0.0);
  EXPECT_GT(packed["kld"]["error"], 0.0);
  EXPECT_EQ(packed["cache"]["bytes"], packed["cache"]["packed_bytes"].get<uint64_t>() +
                                          packed["cache"]["dense_bytes"].get<uint64_t>() +
                                          packed["cache"]["meta_bytes"].get<uint64_t>());
  EXPECT_DOUBLE_EQ(
      packed["cache"]["true_bits"].get<double>(),
      8 * packed["cache"]["bytes"].get<double>() / packed["cache"]["elements"].get<double>());
}

TEST(Ppl, RefusesBadUse) {
  EXPECT_REFUSAL(run_headq(ppl({})), 2, "--kv");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "kivi5"})), 2, "kivi5");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "kivi2", "kivi4"})), 2, "kivi4");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "kivi2", "--kv-layer", "x:dense"})), 2, "x");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "kivi2+hq4x4"})), 2, "kivi2+hq4x4 needs a profile");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "nib2"})), 2, "nib2 needs a profile");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "nib9"})), 2, "from 0.25 to 8");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "nib2/nib2-last8"})), 2, "keys only");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "kivi2", "--window", "5000"})), 2, "5000");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "kivi2", "--format", "xml"})), 2, "xml");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "kivi2", "-t", "0"})), 2, "0");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "kivi2", "-b", "64", "-ub", "65"})), 2, "-ub 65");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "kivi2", "--chunks", "0"})), 2, "--chunks 0");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "kivi2", "--chunks", "999"})), 2, "--chunks 999");
}

TEST(Ppl, RefusesContextsOutsideTheLimits) {
  Arguments args = ppl({"--kv", "kivi2"});
  args[6] = "15";
  EXPECT_REFUSAL(run_headq(args), 2, "-c 15 is not in 16..4096");
  args[6] = "4097";
  EXPECT_REFUSAL(run_headq(args), 2, "-c 4097 is not in 16..4096");
  args[6] = "256x";
  EXPECT_REFUSAL(run_headq(args), 2, "256x");
}

TEST(Ppl, ATextTooShortForOneChunkIsToldItsTokens) {
  Arguments args = ppl({"--kv", "kivi2"});
  args[4] = scratch_file("short.txt", "a b c");
  EXPECT_REFUSAL(run_headq(args), 2, "one chunk needs 256");
}

TEST(Ppl, FilesThatAreNotThereOrNotWhatTheyShouldBe) {
  Arguments args = ppl({"--kv", "kivi2"});
  args[4] = scratch_dir() + "/missing.txt";
  EXPECT_REFUSAL(run_headq(args), 1, "missing.txt");
  args[4] = tiny_text_path();
  args[2] = scratch_dir() + "/missing.gguf";
  EXPECT_REFUSAL(run_headq(args), 1, "missing.gguf");
  args[2] = tiny_text_path();
  EXPECT_REFUSAL(run_headq(args), 1, "text.txt");
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "kivi2", "--profile", tiny_text_path()})), 1, "text.txt");
}

TEST(Ppl, AProfileOfAnotherModelIsRefused) {
  Arguments args = ppl({"--kv", "kivi2+hq4x4/dense", "--profile", profile_path()});
  args[2] =
      testing::write_tiny_model({.family = testing::TinyFamily::kLlama, .seed = 9}, scratch_dir());
  EXPECT_REFUSAL(run_headq(args), 1, "profile");
}

TEST(Ppl, AnInstructionSetThatIsNoneIsRefused) {
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "kivi2"}), {"HEADQ_ISA=mmx"}), 2, "HEADQ_ISA=mmx");
}

TEST(Ppl, APluginThatIsNotThereIsRefused) {
  EXPECT_REFUSAL(run_headq(ppl({"--kv", "kivi2"}), {"HEADQ_PLUGIN=/nowhere/x.so"}), 1,
                 "/nowhere/x.so");
}

TEST(CalibrateCommand, WritesTheSameBytesEveryTime) {
  const std::string folder = empty_folder("twice");
  const auto result = run_headq(calibrate(folder + "/a.gguf", {"--chunks", "3"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  EXPECT_NE(result.out.find("372 tokens in chunks of 128 from 1 text"), std::string::npos)
      << result.out;
  Arguments one_thread = calibrate(folder + "/b.gguf", {"--chunks", "3"});
  one_thread[8] = "1";
  EXPECT_EQ(run_headq(one_thread).exit_code, 0);
  EXPECT_EQ(read_file(folder + "/a.gguf"), read_file(folder + "/b.gguf"));
  EXPECT_EQ(run_headq({"inspect", folder + "/a.gguf"}).exit_code, 0);
}

TEST(CalibrateCommand, MixesTextsAndNamesThem) {
  const std::string out = empty_folder("mix") + "/p.gguf";
  const std::string second = scratch_file("second.txt", testing::tiny_text(400, 8));
  const auto result = run_headq(calibrate(out, {"-f", second, "--kv", "kivi2+hq4x4/kivi2"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const std::string shown = run_headq({"inspect", out}).out;
  EXPECT_NE(shown.find("text.txt"), std::string::npos) << shown;
  EXPECT_NE(shown.find("second.txt"), std::string::npos) << shown;
}

TEST(CalibrateCommand, SplitsATotalRateBetweenTheSides) {
  const std::string out = empty_folder("split") + "/p.gguf";
  const auto result = run_headq(calibrate(out, {"--kv", "auto:2"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_NE(result.out.find("2 bits are best split as nib"), std::string::npos) << result.out;
  const auto json = nlohmann::json::parse(run_headq({"inspect", out, "--format", "json"}).out);
  // Keys and values of the tiny model have as many elements.
  EXPECT_DOUBLE_EQ(json["key_bits"].get<double>() + json["value_bits"].get<double>(), 4.0);
  const std::string kv = json["nib"];
  EXPECT_EQ(run_headq(ppl({"--chunks", "1", "--kv", kv, "--profile", out})).exit_code, 0);
}

TEST(CalibrateCommand, RefusesBadUseAndLeavesNothingBehind) {
  const std::string folder = empty_folder("nothing");
  const std::string out = folder + "/p.gguf";
  EXPECT_REFUSAL(run_headq(calibrate(out, {"--kv", "kivi5"})), 2, "kivi5");
  EXPECT_REFUSAL(run_headq(calibrate(out, {"--kv", "nib0.1"})), 2, "nib0.1");
  EXPECT_REFUSAL(run_headq(calibrate(out, {"--kv", "nib2-last8"})), 2, "nib2-last8");
  EXPECT_REFUSAL(run_headq(calibrate(out, {"--kv", "auto:9"})), 2, "from 0.25 to 8");
  EXPECT_REFUSAL(run_headq(calibrate(out, {"--chunks", "999"})), 2, "--chunks 999");
  EXPECT_REFUSAL(run_headq(calibrate(out, {"junk"})), 2, "junk");
  EXPECT_REFUSAL(run_headq(calibrate(out, {"-f", folder + "/missing.txt"})), 1, "missing.txt");
  EXPECT_REFUSAL(run_headq(calibrate(out, {"-f", scratch_file("tiny.txt", "a b c")})), 2,
                 "one chunk needs 128");
  EXPECT_TRUE(std::filesystem::is_empty(folder));
}

TEST(CalibrateCommand, AnOutputThatCannotBeWrittenIsRefusedBeforeTheRun) {
  // A model that does not exist would be the next thing to fail.
  const auto attempt = [](const std::string& out) {
    return run_headq({"calibrate", "-m", "/nowhere/model.gguf", "-f", tiny_text_path(), "-o", out});
  };
  EXPECT_REFUSAL(attempt(scratch_dir() + "/no-such-folder/p.gguf"), 1, "no-such-folder");
  EXPECT_REFUSAL(attempt(scratch_dir()), 1, "not a regular file");
  EXPECT_REFUSAL(attempt("/dev/full"), 1, "not a regular file");
  EXPECT_REFUSAL(attempt(scratch_dir() + "/fine.gguf"), 1, "/nowhere/model.gguf");
}

TEST(CalibrateCommand, AFailedRunKeepsTheFileThatWasThere) {
  const std::string out = scratch_file("old.gguf", "old");
  EXPECT_REFUSAL(run_headq(calibrate(out, {"--chunks", "999"})), 2, "--chunks 999");
  EXPECT_EQ(read_file(out).size(), 3u);
}

TEST(Table, AlignsColumnsByCodePoints) {
  Table table({"a", "b"});
  table.add_row({"xyz", "1 ± 2"});
  table.add_row({"x", "12345"});
  EXPECT_EQ(table.to_string(),
            "a        b\n"
            "----------\n"
            "xyz  1 ± 2\n"
            "x    12345\n");
}

}  // namespace
}  // namespace headq
