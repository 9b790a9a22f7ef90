#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "codec/fake_model.h"
#include "codec/sample_profile.h"

namespace headq {
namespace {

using testing::FakeModel;
using testing::lines_of;
using testing::run_headq;
using testing::sample_profile;
using testing::TempDir;

bool has_line(const std::string& text, const std::string& line) {
  const auto lines = lines_of(text);
  return std::find(lines.begin(), lines.end(), line) != lines.end();
}

TEST(Inspect, ShowsAProfile) {
  const TempDir dir;
  sample_profile().save(dir.file("p.gguf"));
  const auto result = run_headq({"inspect", dir.file("p.gguf")});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(has_line(result.out, "model        Sample 1M (llama)")) << result.out;
  EXPECT_TRUE(has_line(result.out, "calibration  4096 tokens, context 512"));
  EXPECT_TRUE(has_line(result.out, "text         first.txt 1000 " + std::string(64, '1')));
  EXPECT_TRUE(has_line(result.out, "layers       2, 3 KV heads, 4 vectors a basis"));
  // Spectra halve from one direction to the next: 1/2, 3/4, 15/16 ... of the energy; the entropy of
  // that is 2 ln 2, so the rank is 4. All means are -1/4 of the scale, variances sum to 14 times
  // it.
  EXPECT_TRUE(has_line(result.out,
                       "0         1   16   32   50.0   75.0   93.8   99.6   100.0     "
                       "4.0     4.0        0.38"))
      << result.out;
}

TEST(Inspect, GivesAProfileAsJson) {
  const TempDir dir;
  sample_profile().save(dir.file("p.gguf"));
  const auto result = run_headq({"inspect", dir.file("p.gguf"), "--format", "json"});
  ASSERT_EQ(result.exit_code, 0);
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["type"], "profile");
  EXPECT_EQ(json["model"]["name"], "Sample 1M");
  EXPECT_EQ(json["n_tokens"], 4096);
  ASSERT_EQ(json["layers"].size(), 2u);
  EXPECT_EQ(json["layers"][1]["layer"], 2);
  ASSERT_EQ(json["layers"][0]["heads"].size(), 2u);
  const auto& head = json["layers"][0]["heads"][1];
  EXPECT_NEAR(head["query_energy_share"]["2"], 0.75, 1e-4);
  EXPECT_NEAR(head["query_effective_rank"], 4.0, 1e-2);
  // Scale 2, d 16: |mean| = 0.5 * 4; variance sums to 14 * 2 * (1 - 2^-16).
  EXPECT_NEAR(head["key_mean_to_std"], 2.0 / std::sqrt(28.0), 1e-4);
  EXPECT_EQ(head["query_spectrum"].size(), 16u);
}

TEST(Inspect, ShowsTheCodesOfAProfile) {
  const TempDir dir;
  const Profile profile = sample_profile();
  profile.save(dir.file("p.gguf"));
  testing::without_codes(profile).save(dir.file("none.gguf"));
  const auto result = run_headq({"inspect", dir.file("p.gguf"), "--format", "json"});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto json = nlohmann::json::parse(result.out);
  EXPECT_EQ(json["nib"], "nib2.5/nib2");
  // Keys: 3, 4 and 6 nibbles of 4 bits for 16, 16 and 24 channels.
  EXPECT_NEAR(json["key_bits"], 4.0 * 13 / 56, 1e-9);
  EXPECT_NEAR(json["value_bits"], 4.0 * 10 / 80, 1e-9);
  const auto& head = json["layers"][0]["heads"][1];
  EXPECT_EQ(head["key_nib"]["nibbles"], 4);
  EXPECT_EQ(head["key_nib"]["coordinates"], 4);
  EXPECT_EQ(head["key_nib"]["bits"], 1.0);
  EXPECT_EQ(head["value_nib"]["nibbles"], 3);
  EXPECT_EQ(head["value_nib"]["bits"], 0.375);
  EXPECT_NE(run_headq({"inspect", dir.file("p.gguf")}).out.find("nib2.5/nib2"), std::string::npos);
  EXPECT_EQ(run_headq({"inspect", dir.file("none.gguf")}).out.find("nib"), std::string::npos);
}

TEST(Inspect, ShowsAModel) {
  const TempDir dir;
  FakeModel model;
  const std::string path =
      model.usual().name("Tiny\x1b[31m").u32("context_length", 2048).write(dir);
  const auto result = run_headq({"inspect", path});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_EQ(result.err, "");
  EXPECT_TRUE(has_line(result.out, "model        Tiny?[31m (llama)")) << result.out;
  EXPECT_TRUE(has_line(result.out, "served       yes"));
  EXPECT_TRUE(has_line(result.out, "f16 cache    1.0 KiB a token"));  // 4 * 2 * (32 + 32) * 2 B
  EXPECT_TRUE(has_line(result.out, "0-3            2   32   32"));
}

TEST(Inspect, SaysWhyAModelIsNotServed) {
  const TempDir dir;
  const std::string path = FakeModel("bert").usual().u32("attention.causal", 0).write(dir);
  const auto result = run_headq({"inspect", path});
  EXPECT_EQ(result.exit_code, 0);
  EXPECT_TRUE(has_line(result.out, "served       no: bert is an encoder and has no KV cache"));
  const auto json = run_headq({"inspect", path, "--format", "json"});
  EXPECT_EQ(nlohmann::json::parse(json.out)["why_unsupported"],
            "bert is an encoder and has no KV cache");
}

TEST(Inspect, RefusesWhatItCannotRead) {
  const TempDir dir;
  sample_profile().save(dir.file("p"));
  auto bytes = testing::get_file(dir.file("p"));
  bytes[bytes.size() / 2] ^= 1;
  testing::put_file(dir.file("damaged"), bytes);
  bytes.resize(bytes.size() / 2);
  testing::put_file(dir.file("short"), bytes);
  testing::put_file(dir.file("text"), std::vector<uint8_t>{'h', 'i'});
  testing::put_file(dir.file("empty"), {});

  EXPECT_REFUSAL(run_headq({"inspect", dir.file("none")}), 1, "No such file or directory");
  EXPECT_REFUSAL(run_headq({"inspect", dir.path()}), 1, "not a regular file");
  EXPECT_REFUSAL(run_headq({"inspect", dir.file("text")}), 1, "not a GGUF file");
  EXPECT_REFUSAL(run_headq({"inspect", dir.file("empty")}), 1, "not a GGUF file");
  EXPECT_REFUSAL(run_headq({"inspect", dir.file("damaged")}), 1, "the checksum does not match");
  EXPECT_REFUSAL(run_headq({"inspect", dir.file("short")}), 1, "beyond the end of the file");
  EXPECT_REFUSAL(run_headq({"inspect", dir.file("a\nb")}), 1, "a b: No such file");
  EXPECT_REFUSAL(run_headq({"inspect"}), 2, "file");
  EXPECT_REFUSAL(run_headq({"inspect", dir.file("p"), "--format", "xml"}), 2, "xml");
}

}  // namespace
}  // namespace headq
