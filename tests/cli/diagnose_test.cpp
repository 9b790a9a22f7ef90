// headq diagnose as a user meets it, on tiny models.

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/command.h"
#include "cli/diagnose_page.h"
#include "core/error_of.h"
#include "core/file.h"
#include "headq/error.h"
#include "models/tiny_models.h"
#include "runner/model.h"

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
  const ProgramResult tables = run_headq(diagnose(TinyFamily::kLlama, {"--full-model-chunks", "1", "-o", out}));
  ASSERT_EQ(tables.exit_code, 0) << tables.err;
  EXPECT_EQ(tables.err, "");
  for (const char* text : {"1. Which measure", "2. Counterexamples", "3. A vector",
                           "4. Side code directions", "5. Direction", "6. The whole model",
                           "7. Values: bits by attention paid", "8. Route flips",
                           "Noise floor", "diagnose.txt: 128 queries of 4 KV heads"}) {
    EXPECT_NE(tables.out.find(text), std::string::npos) << text;
  }
  const ProgramResult json =
      run_headq(replaced(
          diagnose(TinyFamily::kLlama, {"--full-model-chunks", "1", "--format", "json"}), "-t",
          "1"));
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
       {"metrics", "counterexamples", "null_space", "deployability", "direction", "full_model",
        "a2_policy", "route_flips"}) {
    EXPECT_TRUE(experiments.contains(name)) << name;
  }
  EXPECT_EQ(experiments["metrics"]["key_kl"]["spearman"][3]["metric"], "fisher");
  EXPECT_GT(experiments["metrics"]["key_kl"]["spearman"][3]["overall"]["value"], 0.9);
  for (const auto& dense : experiments["null_space"]["dense"]) EXPECT_LT(dense["kl_max"], 1e-8);
  EXPECT_GT(experiments["direction"]["wrong"]["kl"]["value"],
            experiments["direction"]["right"]["kl"]["value"]);
  const auto& policies = experiments["a2_policy"]["rows"];
  ASSERT_EQ(policies.size(), 5u);
  EXPECT_EQ(policies[0]["policy"], "base");
  EXPECT_EQ(policies[0]["output_ratio"]["value"], 1.0);
  // A cache knows less than the oracle, and half a bit more helps wherever it goes.
  EXPECT_EQ(policies[4]["policy"], "oracle");
  EXPECT_LE(policies[3]["captured"]["value"], policies[4]["captured"]["value"]);
  for (size_t i = 1; i < 5; ++i) EXPECT_LT(policies[i]["mse"]["value"], policies[0]["mse"]["value"]) << i;
  double share = 0;
  for (const auto& regime : experiments["route_flips"]["regimes"]) {
    share += regime["share"]["value"].get<double>();
  }
  EXPECT_NEAR(share, 1.0, 1e-12);
}

TEST(DiagnoseCommand, CellsAreThoseThatItsTablesRank) {
  const ProgramResult result = run_headq(diagnose(TinyFamily::kLlama, {"--format", "json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto metrics = nlohmann::json::parse(result.out)["experiments"]["metrics"];
  for (const char* side : {"key", "value"}) {
    const std::string name = side;
    const auto& cells = metrics[name + "_cells"];
    const auto& codecs = metrics[name + "_codecs"];
    for (const auto& [column, values] : cells.items()) {
      EXPECT_EQ(values.size(), metrics["n_" + name + "_cells"]) << column;
    }
    // Heads have the same number of query heads, so a mean over these is that over cells, to the
    // four digits of the cells.
    for (size_t c = 0; c < codecs.size(); ++c) {
      double sum = 0, n = 0;
      for (size_t i = 0; i < cells["codec"].size(); ++i) {
        if (cells["codec"][i] != c) continue;
        sum += cells["output_error"][i].get<double>();
        ++n;
      }
      const double mean = codecs[c]["output_error"]["value"];
      EXPECT_NEAR(sum / n, mean, 1e-3 * mean) << codecs[c]["codec"];
    }
  }
}

TEST(DiagnoseCommand, WritesPagesAndJsonOfTheSameReport) {
  const std::string page = scratch_dir() + "/report.html", json = scratch_dir() + "/both.json";
  const ProgramResult result =
      run_headq(diagnose(TinyFamily::kLlama, {"--format", "html", "-o", json, "-o", page}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  EXPECT_EQ(result.out, file_text(page));
  EXPECT_TRUE(result.out.starts_with("<!doctype html>"));
  EXPECT_EQ(result.out, to_page(file_text(json), installed_page_parts()));
  const std::string open = "<script type=\"application/json\" id=\"document\">";
  const size_t begin = result.out.find(open) + open.size();
  const std::string document = result.out.substr(begin, result.out.find('<', begin) - begin);
  EXPECT_EQ(nlohmann::json::parse(document), nlohmann::json::parse(file_text(json)));
}

TEST(DiagnosePage, HoldsTheLibraryAndItsLicence) {
  const PageParts& parts = installed_page_parts();
  const std::string page = to_page("{}", parts);
  EXPECT_NE(page.find(parts.library), std::string::npos);
  EXPECT_NE(parts.library.substr(0, 200).find("Copyright"), std::string::npos);
  EXPECT_NE(page.find("Redistributions of source code"), std::string::npos);
  for (const std::string_view script : {parts.library, std::string_view(parts.script)}) {
    EXPECT_EQ(script.find("</script"), std::string_view::npos);
    EXPECT_EQ(script.find("<!--"), std::string_view::npos);
  }
  const std::string before = page.substr(0, page.find(parts.library));
  EXPECT_EQ(before.find("{{"), std::string::npos);
}

TEST(DiagnosePage, NoStringOfTheDocumentEndsItsElement) {
  const std::string hostile = "</script><!-- <script> & {{policy}} \u2028";
  const std::string json = nlohmann::json{{"model", hostile}, {hostile, 1}}.dump();
  const PageParts parts = {.page = "{{document}}|{{policy}}",
                           .style = "",
                           .script = "",
                           .library = "library",
                           .licence = ""};
  const std::string page = to_page(json, parts);
  const std::string document = page.substr(0, page.rfind('|'));
  for (const char c : {'<', '>', '&'}) EXPECT_EQ(document.find(c), std::string::npos) << c;
  EXPECT_EQ(nlohmann::json::parse(document), nlohmann::json::parse(json));
}

TEST(DiagnosePage, ThePolicyNamesEachScriptByItsHash) {
  // Hashes of "abc" and of nothing: FIPS 180-4's examples, in base64.
  const PageParts parts = {
      .page = "{{policy}}", .style = "", .script = "abc", .library = "abc", .licence = ""};
  const std::string policy = to_page("{}", parts);
  EXPECT_NE(policy.find("style-src 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"),
            std::string::npos)
      << policy;
  EXPECT_NE(policy.find("'sha256-ungWv48Bz+pBQUDeXa4iI7ADYaOWF3qctBD/YfIAFa0='"), std::string::npos)
      << policy;
  EXPECT_EQ(policy.find("unsafe"), std::string::npos);
}

TEST(DiagnosePage, IsRefusedWithoutTheLibraryOrADocument) {
  PageParts parts = installed_page_parts();
  EXPECT_ERROR(to_page("{", parts), ErrorCode::kInvalidArgument, "not a JSON document");
  parts.library = {};
  EXPECT_ERROR(check_page_parts(parts), ErrorCode::kUnsupported, "node-d3");
  EXPECT_ERROR(to_page("{}", parts), ErrorCode::kUnsupported, "cannot write HTML reports");
}

using Json = nlohmann::json;

const Json& find_row(const Json& rows, const std::string& kv) {
  const auto row =
      std::find_if(rows.begin(), rows.end(), [&](const Json& r) { return r["kv"] == kv; });
  if (row == rows.end()) throw std::runtime_error("no row " + kv);
  return *row;
}

// A context of at least 256 tokens of which the text behind n chunks is a text of its own, and that
// text: its tokens, the first one aside, are those of the whole text.
std::pair<int, std::string> cut_text(const std::string& model_path, const std::string& text,
                                     int n) {
  const Model model = Model::load(model_path, Device::kCpu);
  const std::vector<int32_t> all = model.tokenize(text);
  for (size_t at = text.find(' '); at != std::string::npos; at = text.find(' ', at + 1)) {
    const std::string rest = text.substr(at + 1);
    const std::vector<int32_t> tokens = model.tokenize(rest);
    if (tokens.size() >= all.size()) continue;
    const size_t n_before = all.size() - tokens.size();
    const size_t n_ctx = n_before / static_cast<size_t>(n);
    if (n_before % static_cast<size_t>(n) != 0 || n_ctx < 256) continue;
    if (std::equal(tokens.begin() + 1, tokens.end(),
                   all.begin() + static_cast<std::ptrdiff_t>(n_before) + 1)) {
      return {static_cast<int>(n_ctx), rest};
    }
  }
  throw std::runtime_error("no chunk ends with a word");
}

TEST(DiagnoseCommand, TheWholeModelHasTheFiguresOfPpl) {
  const std::string model = model_of(TinyFamily::kLlama);
  const std::string text = testing::tiny_text(700, 5);
  const auto [n_ctx, rest] = cut_text(model, text, 2);
  const std::string whole = scratch_file("whole.txt", text + "\n");
  const std::string measured = scratch_file("measured.txt", rest + "\n");
  const std::string context = std::to_string(n_ctx);
  const Arguments common = {"-m", model, "-c", context, "-t", "2"};
  const auto run = [&](Arguments args, const Arguments& more) {
    args.insert(args.end(), common.begin(), common.end());
    args.insert(args.end(), more.begin(), more.end());
    const ProgramResult result = run_headq(args);
    if (result.exit_code != 0) throw std::runtime_error(result.err);
    return result.out;
  };
  const Json full = Json::parse(
      run({"diagnose"}, {"-f", whole, "--calibration-chunks", "2", "--chunks", "1", "--heads", "1",
                         "--queries", "2", "--full-model-chunks", "2", "--format", "json"}))
      ["experiments"]["full_model"];
  const std::string profile = scratch_dir() + "/nib3.gguf";
  run({"calibrate"}, {"-f", whole, "--chunks", "2", "--kv", "nib3", "-o", profile});
  const std::vector<std::string> keys = {"kivi2/dense", "kivi3+hq8x4/dense", "kivi2w9/dense",
                                         "kivi4-hq4x4/dense", "nib3/dense"};
  const std::vector<std::string> both = {"kivi4/kivi4", "kivi2+hq1x4/kivi2", "nib3/nib3"};
  Arguments specs = {"-f", measured, "--chunks", "2", "-b", "128", "--ubatch-size", "128",
                     "--profile", profile, "--format", "json"};
  for (const auto* list : {&keys, &both}) {
    for (const std::string& kv : *list) specs.insert(specs.end(), {"--kv", kv});
  }
  const Json ppl = Json::parse(run({"ppl"}, specs));
  EXPECT_EQ(full["n_scored"], ppl["n_scored"]);
  EXPECT_EQ(full["dense"]["ppl"], ppl["dense"]["ppl"]);
  const auto compare = [&](const char* part, const std::vector<std::string>& list) {
    for (const std::string& kv : list) {
      const Json& ours = find_row(full[part], kv);
      const Json& theirs = find_row(ppl["rows"], kv);
      for (const char* figure : {"ppl", "ppl_ratio", "kld", "top1"}) {
        EXPECT_EQ(ours[figure], theirs[figure]) << kv << " " << figure;
      }
      EXPECT_EQ(ours["true_bits"], theirs["cache"]["true_bits"]) << kv;
      EXPECT_EQ(ours["packed_bits"], theirs["cache"]["packed_bits"]) << kv;
    }
  };
  compare("keys_only", keys);
  compare("full_kv", both);
}

TEST(DiagnoseCommand, TheWholeModelHasItsRowsAndControls) {
  const ProgramResult result = run_headq(diagnose(
      TinyFamily::kLlama,
      {"--heads", "1", "--full-model-chunks", "2", "--format", "json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json full = Json::parse(result.out)["experiments"]["full_model"];
  EXPECT_EQ(full["n_chunks"], 2);
  EXPECT_EQ(full["keys_only"].size(), 3u * 9);
  EXPECT_EQ(full["full_kv"].size(), 3u * 7 + 2);
  EXPECT_EQ(full["llama_cpp"].size(), 3u);
  const Json& keys = full["keys_only"];
  const auto kld = [&](const std::string& kv) {
    return find_row(keys, kv)["kld"]["value"].get<double>();
  };
  const auto bits = [&](const std::string& kv) {
    return find_row(keys, kv)["packed_bits"].get<double>();
  };
  EXPECT_LT(kld("kivi2+hq4x4/dense"), 0.8 * kld("kivi2/dense"));
  EXPECT_LT(kld("kivi2+hq4x4/dense"), kld("kivi2+hq4x4@random/dense"));
  EXPECT_GT(kld("kivi2-hq4x4/dense"), 1.5 * kld("kivi2/dense"));
  // The control has at least the side code's bits, and less than a nibble more.
  EXPECT_GE(bits("kivi2w9/dense"), bits("kivi2+hq4x4/dense"));
  EXPECT_LT(bits("kivi2w9/dense"), bits("kivi2+hq4x4/dense") + 4.0 / 32);
  EXPECT_LT(kld("kivi2w9/dense"), kld("kivi2/dense"));
  EXPECT_DOUBLE_EQ(bits("nib2/dense"), 2.0 * 192 / 188);  // the sinks of 3 blocks have no codes
  for (const char* part : {"keys_only", "full_kv"}) {
    Json base;
    for (const Json& row : full[part]) {
      if (row["role"] == "base") {
        base = row;
        EXPECT_TRUE(row["kld_removed"]["value"].is_null());
        continue;
      }
      EXPECT_EQ(row["bits"], base["bits"]);
      const double removed =
          1 - row["kld"]["value"].get<double>() / base["kld"]["value"].get<double>();
      EXPECT_NEAR(row["kld_removed"]["value"].get<double>(), removed, 1e-12);
    }
  }
  const Json& paid = find_row(full["full_kv"], "kivi2/kivi2+a2");
  const Json& random = find_row(full["full_kv"], "kivi2/kivi2+a2@random");
  EXPECT_EQ(paid["role"], "paid_tokens");
  EXPECT_EQ(random["role"], "random_tokens");
  EXPECT_EQ(paid["packed_bits"], random["packed_bits"]);
  EXPECT_GT(paid["kld_removed"]["value"], 0.0);
  const Json& floor = find_row(full["llama_cpp"], "f16");
  EXPECT_EQ(floor["packed_bits"], 16.0);
  EXPECT_LT(floor["kld"]["value"], find_row(full["llama_cpp"], "q8_0")["kld"]["value"]);
  EXPECT_LT(find_row(full["llama_cpp"], "q8_0")["kld"]["value"],
            find_row(full["llama_cpp"], "q4_0")["kld"]["value"]);
}

TEST(DiagnoseCommand, TheWholeModelCanBeLeftOut) {
  const ProgramResult result = run_headq(diagnose(
      TinyFamily::kLlama, {"--heads", "1", "--full-model-chunks", "0", "--format", "json"}));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const Json experiments = Json::parse(result.out)["experiments"];
  EXPECT_FALSE(experiments.contains("full_model"));
  EXPECT_TRUE(experiments.contains("route_flips"));
  const Json& codecs = experiments["route_flips"]["codecs"];
  EXPECT_EQ(codecs.back(), "nib2");
}

TEST(DiagnoseCommand, KnowsSoftcapsAndWindows) {
  // Layers whose window is shorter than what stays dense have nothing to diagnose.
  const std::string model =
      testing::write_tiny_model({.family = TinyFamily::kGemma2, .n_swa = 32}, scratch_dir());
  const Arguments args =
      diagnose(TinyFamily::kGemma2, {"--format", "json", "--full-model-chunks", "1"});
  const ProgramResult result = run_headq(replaced(args, "-m", model));
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const auto report = nlohmann::json::parse(result.out);
  EXPECT_EQ(report["n_heads"], 2);
  const auto& layers = report["experiments"]["route_flips"]["layers"];
  ASSERT_EQ(layers.size(), 1u);
  EXPECT_EQ(layers[0]["layer"], 1);
}

TEST(DiagnoseCommand, TakesAsManyHeadsAsAsked) {
  const ProgramResult result =
      run_headq(diagnose(TinyFamily::kQwen2,
                         {"--format", "json", "--heads", "2", "--full-model-chunks", "0"}));
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
  EXPECT_REFUSAL(attempt({"-o", folder + "/r.txt"}), 2, "r.txt: a report's name ends with");
  EXPECT_REFUSAL(attempt({"--heads", "0"}), 2, "--heads 0 is not in 1..");
  EXPECT_REFUSAL(attempt({"junk"}), 2, "junk");
  for (const char* n : {"999", "-2"}) {
    EXPECT_REFUSAL(attempt({"--full-model-chunks", n}), 2,
                   std::string("--full-model-chunks ") + n + " is not in 0..");
  }
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
  const std::string folder = scratch_dir() + "/folder.json";
  std::filesystem::create_directory(folder);
  EXPECT_REFUSAL(attempt(folder), 1, "not a regular file");
  EXPECT_REFUSAL(attempt(scratch_dir() + "/fine.json"), 1, "/nowhere/model.gguf");
}

}  // namespace
}  // namespace headq
