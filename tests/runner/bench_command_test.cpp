// headq bench as a user meets it.

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "cli/bench_report.h"
#include "cli/command.h"
#include "core/file.h"
#include "runner/run_program.h"
#include "runner/tiny_run.h"

namespace headq {
namespace {

using nlohmann::json;
using testing::lines_of;
using testing::run_headq;
using testing::run_program;
using testing::scratch_dir;
using testing::scratch_file;
using testing::tiny_model_path;
using testing::tiny_text_path;

using Arguments = std::vector<std::string>;

Arguments bench(const Arguments& more) {
  Arguments args = {"bench",
                    "-m",
                    tiny_model_path(),
                    "-t",
                    "1",
                    "-n",
                    "4",
                    "-p",
                    "16",
                    "-ub",
                    "64",
                    "-r",
                    "3",
                    "--cache-type",
                    "q8_0",
                    "-d",
                    "128,0",
                    "--kv",
                    "kivi2/kivi2"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// One cache at depth 0, so that each option is given once.
Arguments plain(const Arguments& more) {
  Arguments args = {"bench", "-m", tiny_model_path(), "-t", "1"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

std::string file_text(const std::string& path) {
  const auto bytes = read_file(path);
  return {bytes.begin(), bytes.end()};
}

const json& result() {
  static const json out = [] {
    const auto result = run_headq(bench({"--format", "json"}));
    EXPECT_EQ(result.exit_code, 0) << result.err;
    EXPECT_EQ(result.err, "");
    return json::parse(result.out);
  }();
  return out;
}

TEST(Bench, TableHasEveryCacheAtEveryDepth) {
  const auto result = run_headq(bench({"-f", tiny_text_path()}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto lines = lines_of(result.out);
  ASSERT_EQ(lines.size(), 13u) << result.out;
  EXPECT_EQ(lines[0].rfind("depth 0 ", 0), 0u);
  EXPECT_EQ(lines[6].rfind("depth 128 ", 0), 0u);
  for (const size_t first : {0u, 6u}) {
    EXPECT_NE(lines[first].find("tg4 t/s"), std::string::npos);
    EXPECT_NE(lines[first].find("pp16 t/s"), std::string::npos);
    EXPECT_EQ(lines[first + 2].rfind("f16 ", 0), 0u);
    EXPECT_NE(lines[first + 2].find("1.00 (1.00–1.00)"), std::string::npos);
    EXPECT_EQ(lines[first + 3].rfind("q8_0 ", 0), 0u);
    EXPECT_EQ(lines[first + 4].rfind("kivi2/kivi2 ", 0), 0u);
  }
  EXPECT_NE(lines[12].find("3 repetitions in turn, medians; text.txt; -t 1 -ub 64, context 256"),
            std::string::npos)
      << lines[12];
}

double median_of_three(json values) {
  std::sort(values.begin(), values.end());
  return values[1];
}

TEST(Bench, RatiosAreThoseOfTheRawSeconds) {
  const json& out = result();
  ASSERT_EQ(out["depths"].size(), 2u);
  for (const json& depth : out["depths"]) {
    const json& rows = depth["rows"];
    ASSERT_EQ(rows.size(), 3u);
    for (const json& row : rows) {
      for (const auto& [what, n] : {std::pair("generate", 4.0), std::pair("prompt", 16.0)}) {
        json ratios, rates;
        for (size_t r = 0; r < 3; ++r) {
          const double seconds = row[what]["seconds"][r];
          EXPECT_GT(seconds, 0.0);
          ratios.push_back(rows[0][what]["seconds"][r].get<double>() / seconds);
          rates.push_back(n / seconds);
        }
        EXPECT_DOUBLE_EQ(row[what]["ratio"]["median"], median_of_three(ratios));
        EXPECT_DOUBLE_EQ(row[what]["ratio"]["min"],
                         *std::min_element(ratios.begin(), ratios.end()));
        EXPECT_DOUBLE_EQ(row[what]["ratio"]["max"],
                         *std::max_element(ratios.begin(), ratios.end()));
        EXPECT_DOUBLE_EQ(row[what]["tokens_per_second"]["median"], median_of_three(rates));
      }
      EXPECT_GT(row["process_bytes"], 0u);
    }
    EXPECT_EQ(rows[0]["generate"]["ratio"]["min"], 1.0);
    EXPECT_TRUE(rows[0]["cache_bytes"].is_null());
    EXPECT_EQ(rows[0]["engine"], "llama.cpp");
    EXPECT_EQ(rows[2]["engine"], "headq");
  }
  EXPECT_EQ(out["depths"][0]["rows"][2]["cache"], "kivi2/kivi2");
  EXPECT_GT(out["depths"][1]["rows"][2]["cache_bytes"], 0u);
}

TEST(Bench, NoTwoMeasurementsOverlapAndRepetitionsInterleave) {
  struct Span {
    double begin, end;
    size_t repetition;
  };
  std::vector<Span> spans;
  for (const json& depth : result()["depths"]) {
    const size_t base = spans.size() / 6;  // six measurements a repetition
    for (const json& row : depth["rows"]) {
      for (const char* what : {"generate", "prompt"}) {
        for (size_t r = 0; r < 3; ++r) {
          const double began = row[what]["began"][r];
          spans.push_back({began, began + row[what]["seconds"][r].get<double>(), base + r});
        }
      }
    }
  }
  std::sort(spans.begin(), spans.end(), [](auto& a, auto& b) { return a.begin < b.begin; });
  for (size_t i = 0; i < spans.size(); ++i) {
    EXPECT_EQ(spans[i].repetition, i / 6);
    EXPECT_GE(spans[i].begin, i > 0 ? spans[i - 1].end : 0.0);
  }
}

void collect_keys(const json& value, std::set<std::string>& keys) {
  if (value.is_object()) {
    for (const auto& [key, child] : value.items()) {
      keys.insert(key);
      collect_keys(child, keys);
    }
  }
  if (value.is_array()) {
    for (const json& child : value) collect_keys(child, keys);
  }
}

TEST(Bench, EveryKeyOfTheJsonIsDocumented) {
  const std::string docs = file_text(HEADQ_TEST_DOCS "/performance.md");
  std::set<std::string> keys;
  collect_keys(result(), keys);
  EXPECT_GT(keys.size(), 15u);
  for (const std::string& key : keys) {
    EXPECT_NE(docs.find("`" + key + "`"), std::string::npos) << key;
  }
}

size_t count(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Bench, WritesThePlotAndTheOtherFormsBesideTheTable) {
  const std::string base = scratch_dir() + "/out";
  const auto result =
      run_headq(bench({"-o", base + ".svg", "-o", base + ".json", "-o", base + ".txt"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(file_text(base + ".txt"), result.out);
  EXPECT_EQ(json::parse(file_text(base + ".json"))["n_gen"], 4);
  const std::string svg = file_text(base + ".svg");
  EXPECT_EQ(svg.rfind("<svg ", 0), 0u);
  EXPECT_EQ(count(svg, "<polyline "), 6u);  // three caches, two panels
  EXPECT_EQ(count(svg, "<circle "), 12u);   // at two depths
  EXPECT_EQ(count(svg, "<g "), count(svg, "</g>"));
  EXPECT_EQ(count(svg, "prefers-color-scheme: dark"), 1u);
}

// A report of three repetitions at two depths: the second cache is 4, 2 and 2 times as fast as f16.
BenchReport planted_report() {
  BenchReport report;
  report.model = "a<b>&c";
  report.plan = {.depths = {0, 100}, .n_gen = 8, .n_prompt = 0, .n_repetitions = 3};
  report.candidates = {{.name = "f16"}, {.name = "x", .device = Device::kPlugin}};
  const BenchCell f16{.generate = {{4, 0}, {4, 2}, {6, 4}}, .prompt = {}, .memory = {3 << 20, 0}};
  const BenchCell x{.generate = {{1, 1}, {2, 3}, {3, 5}}, .prompt = {}, .memory = {1 << 20, 512}};
  report.cells = {{f16, x}, {f16, x}};
  return report;
}

TEST(BenchReport, ShowsThePlantedFigures) {
  const BenchReport report = planted_report();
  const std::string table = to_table(report);
  EXPECT_NE(table.find("4.00"), std::string::npos) << table;  // 8 tokens in 2 s
  EXPECT_NE(table.find("2.00 (2.00–4.00)"), std::string::npos) << table;
  EXPECT_NE(table.find("0.33"), std::string::npos) << table;  // 1 of 3 MiB
  EXPECT_EQ(table.find("pp"), std::string::npos) << table;
  const json out = json::parse(to_json(report));
  EXPECT_EQ(out["depths"][1]["rows"][1]["generate"]["ratio"]["max"], 4.0);
  EXPECT_TRUE(out["depths"][1]["rows"][1]["prompt"].is_null());
  const std::string svg = to_svg(report);
  EXPECT_NE(svg.find("a&lt;b&gt;&amp;c"), std::string::npos);
  EXPECT_NE(svg.find("x  2.00×"), std::string::npos);
  EXPECT_NE(svg.find("1.0 MiB"), std::string::npos);
}

TEST(Bench, RefusesWhatItCannotMeasure) {
  EXPECT_REFUSAL(run_headq({"bench"}), 2, "-m MODEL is missing");
  EXPECT_REFUSAL(run_headq(plain({"-n", "0", "-p", "0"})), 2, "nothing to measure");
  EXPECT_REFUSAL(run_headq(plain({"-d", "-1"})), 2, "-1 not in range");
  EXPECT_REFUSAL(run_headq(plain({"-d", "1,x"})), 2, "x");
  EXPECT_REFUSAL(run_headq(plain({"-r", "0"})), 2, "0 not in range");
  EXPECT_REFUSAL(run_headq(plain({"--cache-type", "q9_9"})), 2, "no cache of type 'q9_9'");
  EXPECT_REFUSAL(run_headq(plain({"--kv", "nib2/nib2"})), 2, "needs a profile");
  EXPECT_REFUSAL(run_headq(plain({"--kv", "bogus"})), 2, "bogus");
  EXPECT_REFUSAL(run_headq(plain({"-o", scratch_dir() + "/x.png"})), 2, "neither in .svg");
  EXPECT_REFUSAL(run_headq(plain({"-o", scratch_dir() + "/none/x.svg"})), 1, "No such file");
  EXPECT_REFUSAL(run_headq(plain({"--profile", "/none.gguf"})), 1, "/none.gguf");
  EXPECT_REFUSAL(run_headq({"bench", "-m", "/none.gguf"}), 1, "/none.gguf");
  const std::string few = scratch_file("few.txt", "a b");
  EXPECT_REFUSAL(run_headq(plain({"-f", few})), 2, "are needed");
}

TEST(Bench, SaysHowToBuildTheKernelsProgramWhereThereIsNone) {
  const std::string alone = scratch_dir() + "/headq";
  std::filesystem::copy_file(HEADQ_TEST_BINARY, alone);
  EXPECT_REFUSAL(run_program({alone, "bench", "--kernels"}), 1, "-DHEADQ_BUILD_BENCH=ON builds it");
  EXPECT_REFUSAL(run_program({alone, "bench", "--kernels", "decode", "-o", "x.svg"}), 2,
                 ".json file only");
}

}  // namespace
}  // namespace headq
