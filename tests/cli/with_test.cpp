#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "cli/command.h"
#include "codec/fake_model.h"
#include "codec/sample_profile.h"

namespace headq {
namespace {

using testing::FakeModel;
using testing::lines_of;
using testing::ProgramResult;
using testing::TempDir;

using Args = std::vector<std::string>;

// A folder with a stand-in for llama-server that prints what it was given, a plugin, and a model.
class With : public ::testing::Test {
 protected:
  With() {
    write_script("llama-server",
                 "#!/bin/sh\n"
                 "for name in GGML_BACKEND_PATH HEADQ_KV HEADQ_KV_LAYER HEADQ_PROFILE HEADQ_WINDOW "
                 "HEADQ_SINKS; do\n"
                 "  eval \"echo $name=\\$$name\"\n"
                 "done\n"
                 "for arg in \"$@\"; do echo \"[$arg]\"; done\n"
                 "exit 7\n");
    testing::put_file(plugin_, {});
    FakeModel model;
    model.usual().name("Mine").tensor("w", {32}).write(dir_, "m.gguf");
    FakeModel encoder("bert");
    encoder.usual().u32("attention.causal", 0).write(dir_, "bert.gguf");
    testing::profile_for(ModelInfo::load(model_)).save(profile_);
  }

  void write_script(const std::string& name, const std::string& text) {
    testing::put_file(dir_.file(name), std::vector<uint8_t>(text.begin(), text.end()));
    chmod(dir_.file(name).c_str(), 0700);
  }

  ProgramResult run(const Args& options, const Args& program, Args settings = {}) {
    Args args = {"with"};
    args.insert(args.end(), options.begin(), options.end());
    args.push_back("--");
    args.insert(args.end(), program.begin(), program.end());
    settings.insert(settings.begin(), "HEADQ_PLUGIN=" + plugin_);
    return testing::run_headq(args, settings);
  }

  const TempDir dir_;
  const std::string server_ = dir_.file("llama-server");
  const std::string plugin_ = dir_.file("plugin.so");
  const std::string model_ = dir_.file("m.gguf");
  const std::string profile_ = dir_.file("profile.gguf");
};

TEST_F(With, RunsTheProgramWithPluginPolicyAndFlags) {
  const auto result = run({"--kv", "kivi2+hq4x4/kivi2", "--kv-layer", "0:kivi4,3:dense",
                           "--profile", profile_, "--window", "64", "--sinks", "0"},
                          {server_, "-m", model_, "-p", "two  words", ""});
  EXPECT_EQ(result.exit_code, 7);  // the program's own
  EXPECT_EQ(result.err, "");
  EXPECT_EQ(lines_of(result.out),
            (Args{"GGML_BACKEND_PATH=" + plugin_, "HEADQ_KV=kivi2+hq4x4/kivi2",
                  "HEADQ_KV_LAYER=0:kivi4,3:dense", "HEADQ_PROFILE=" + profile_, "HEADQ_WINDOW=64",
                  "HEADQ_SINKS=0", "[--device]", "[HEADQ0]", "[-ngl]", "[999]", "[-fa]", "[on]",
                  "[-m]", "[" + model_ + "]", "[-p]", "[two  words]", "[]"}));
}

TEST_F(With, HasADefaultThatNeedsNoProfile) {
  const auto lines = lines_of(run({}, {server_, "-m", model_}).out);
  ASSERT_GT(lines.size(), 5u);
  EXPECT_EQ(lines[1], "HEADQ_KV=kivi4/kivi2");
  EXPECT_EQ(lines[3], "HEADQ_PROFILE=");
  EXPECT_EQ(lines[4], "HEADQ_WINDOW=32");
  EXPECT_EQ(lines[5], "HEADQ_SINKS=4");
}

TEST_F(With, HasADefaultThatUsesTheProfile) {
  const Profile profile = Profile::load(profile_);
  testing::without_codes(profile).save(dir_.file("no-codes.gguf"));
  const std::pair<std::string, std::string> kDefaults[] = {
      {profile_, profile.nib}, {dir_.file("no-codes.gguf"), "kivi2+hq4x4/kivi2"}};
  for (const auto& [path, kv] : kDefaults) {
    const auto lines = lines_of(run({"--profile", path}, {server_, "-m", model_}).out);
    ASSERT_GT(lines.size(), 3u);
    EXPECT_EQ(lines[1], "HEADQ_KV=" + kv);
  }
}

TEST_F(With, RefusesARateThatTheProfileDoesNotHold) {
  for (const Args& options :
       {Args{"--kv", "nib2"}, Args{"--kv", "dense", "--kv-layer", "1:nib2"}}) {
    Args args = {"--profile", profile_};
    args.insert(args.end(), options.begin(), options.end());
    EXPECT_REFUSAL(run(args, {server_, "-m", model_}), 1,
                   "the profile holds nib2.5/nib2, not nib2/nib2");
  }
}

TEST_F(With, TakesTheEnvironmentWhereNoOptionSpeaks) {
  const Args settings = {"HEADQ_KV=token4h", "HEADQ_WINDOW=8", "HEADQ_SINKS=1"};
  const auto lines = lines_of(run({"--sinks", "2"}, {server_, "-m", model_}, settings).out);
  ASSERT_GT(lines.size(), 5u);
  EXPECT_EQ(lines[1], "HEADQ_KV=token4h/token4h");
  EXPECT_EQ(lines[4], "HEADQ_WINDOW=8");
  EXPECT_EQ(lines[5], "HEADQ_SINKS=2");
}

TEST_F(With, MakesTheProfilesPathAbsolute) {
  std::filesystem::create_directory(dir_.file("sub"));
  const auto result = testing::run_shell(
      "cd '" + dir_.file("sub") + "' && HEADQ_PLUGIN='" + plugin_ +
      "' \"$HEADQ\" with --profile ../profile.gguf -- ../llama-server -m ../m.gguf");
  EXPECT_NE(result.out.find("HEADQ_PROFILE=" + dir_.file("sub") + "/../profile.gguf\n"),
            std::string::npos)
      << result.out << result.err;
}

TEST_F(With, RunsAProgramThatNamesNoModel) {
  EXPECT_EQ(run({}, {server_, "--help"}).exit_code, 7);
  EXPECT_EQ(run({}, {server_, "-hf", "some/model"}).exit_code, 7);
}

TEST_F(With, FindsPrograms) {
  write_script("my-llama", "#!/bin/sh\necho mine\n");
  const char* path = std::getenv("PATH");
  const auto found = run({}, {"my-llama"}, {"PATH=" + dir_.path() + ":" + (path ? path : "")});
  EXPECT_EQ(found.out, "mine\n");
  EXPECT_REFUSAL(run({}, {"my-llama"}), 1, "no program 'my-llama' in ");
  EXPECT_REFUSAL(run({}, {dir_.file("none")}), 1, "no program that can be run");
  EXPECT_REFUSAL(run({}, {model_}), 1, "no program that can be run");  // not executable
}

TEST_F(With, PrefersTheLlamaCppItWasBuiltFor) {
  const auto result = run({}, {"llama-server", "--version"}, {"PATH=" + dir_.path()});
  EXPECT_EQ(result.out.find("HEADQ_KV="), std::string::npos) << "the stand-in ran";
  EXPECT_NE(result.exit_code, 7);
}

TEST_F(With, RefusesBadSpecs) {
  EXPECT_REFUSAL(run({"--kv", "kivi5"}, {server_}), 2, "codec spec 'kivi5'");
  EXPECT_REFUSAL(run({"--kv", ""}, {server_}), 2, "codec spec ''");
  EXPECT_REFUSAL(run({"--kv", "kivi2/kivi2x"}, {server_}), 2, "kivi2x");
  EXPECT_REFUSAL(run({"--kv-layer", "x:dense"}, {server_}), 2, "'x:dense'");
  EXPECT_REFUSAL(run({"--kv-layer", "4:dense"}, {server_, "-m", model_}), 2, "layer 4");
  EXPECT_REFUSAL(run({"--window", "-1"}, {server_}), 2, "window -1");
  EXPECT_REFUSAL(run({"--window", "many"}, {server_}), 2, "many");
  EXPECT_REFUSAL(run({"--sinks", "65"}, {server_}), 2, "sinks 65");
  EXPECT_REFUSAL(run({}, {server_}, {"HEADQ_WINDOW=x"}), 2, "HEADQ_WINDOW 'x'");
  EXPECT_REFUSAL(run({}, {server_}, {"HEADQ_KV=x"}), 2, "codec spec 'x'");
  EXPECT_REFUSAL(run({}, {}), 2, "no program to run");
  EXPECT_REFUSAL(testing::run_headq({"with"}), 2, "no program to run");
}

TEST_F(With, RefusesAnIsaThatIsNotThere) {
  EXPECT_REFUSAL(run({}, {server_}, {"HEADQ_ISA=avx1024"}), 2, "HEADQ_ISA=avx1024");
}

TEST_F(With, RefusesASpecWithoutItsProfile) {
  EXPECT_REFUSAL(run({"--kv", "kivi2+hq4x4"}, {server_, "-m", model_}), 2, "needs a profile");
  EXPECT_REFUSAL(run({"--kv-layer", "0:kivi3"}, {server_, "-m", model_}), 2, "needs a profile");
  EXPECT_EQ(run({"--kv", "kivi2+hq4x4@random"}, {server_, "-m", model_}).exit_code, 7);
}

TEST_F(With, RefusesBadModels) {
  EXPECT_REFUSAL(run({}, {server_, "-m", dir_.file("none")}), 1, "No such file or directory");
  EXPECT_REFUSAL(run({}, {server_, "-m", plugin_}), 1, "not a GGUF file");
  EXPECT_REFUSAL(run({}, {server_, "--model=" + plugin_}), 1, "not a GGUF file");
  EXPECT_REFUSAL(run({}, {server_, "-m", profile_}), 1, "a headq profile, not a model");
  EXPECT_REFUSAL(run({}, {server_, "-m", dir_.file("bert.gguf")}), 1, "has no KV cache");
  EXPECT_REFUSAL(run({}, {server_}, {"LLAMA_ARG_MODEL=" + dir_.file("bert.gguf")}), 1,
                 "has no KV cache");
}

TEST_F(With, RefusesBadProfiles) {
  auto bytes = testing::get_file(profile_);
  bytes[bytes.size() - 100] ^= 16;
  testing::put_file(dir_.file("damaged"), bytes);
  bytes.resize(bytes.size() - 1000);
  testing::put_file(dir_.file("short"), bytes);
  testing::sample_profile().save(dir_.file("other"));
  const auto with = [this](const std::string& profile) {
    return run({"--profile", profile}, {server_, "-m", model_});
  };
  EXPECT_REFUSAL(with(dir_.file("none")), 1, "No such file or directory");
  EXPECT_REFUSAL(with(dir_.file("damaged")), 1, "the checksum does not match");
  EXPECT_REFUSAL(with(dir_.file("short")), 1, "beyond the end of the file");
  EXPECT_REFUSAL(with(model_), 1, "not a headq profile");
  EXPECT_REFUSAL(with(dir_.file("other")), 1, "other does not belong to ");
}

TEST_F(With, RefusesTheProfileOfAFineTune) {
  FakeModel tuned;
  const std::string path =
      tuned.usual().name("Tuned").tensor("w", {32}, 2.0f).write(dir_, "t.gguf");
  EXPECT_REFUSAL(run({"--profile", profile_}, {server_, "-m", path}), 1,
                 "the profile is for 'Mine' with fingerprint");
}

TEST_F(With, RefusesAProfileThatItCannotCompare) {
  EXPECT_REFUSAL(run({"--profile", profile_}, {server_, "-hf", "some/model"}), 2, "needs -m MODEL");
}

TEST_F(With, RefusesArgumentsThatStandAgainstIt) {
  EXPECT_REFUSAL(run({}, {server_, "-m", model_, "-fa", "off"}), 2, "'-fa off'");
  EXPECT_REFUSAL(run({}, {server_, "-m", model_, "-ctk", "q8_0"}), 2, "'-ctk q8_0'");
  EXPECT_REFUSAL(run({}, {server_, "-m", model_, "-nkvo"}), 2, "'-nkvo'");
  EXPECT_REFUSAL(run({}, {server_, "-m", model_}, {"LLAMA_ARG_CACHE_TYPE_K=q8_0"}), 2,
                 "LLAMA_ARG_CACHE_TYPE_K=q8_0");
  EXPECT_REFUSAL(run({}, {server_}, {"GGML_BACKEND_PATH=/other.so"}), 1,
                 "GGML_BACKEND_PATH already names /other.so");
}

TEST_F(With, RefusesToRunWithoutThePlugin) {
  EXPECT_REFUSAL(run({}, {server_}, {"HEADQ_PLUGIN=" + dir_.file("none")}), 1, "is not there");
}

}  // namespace
}  // namespace headq
