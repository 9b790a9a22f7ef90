// headq ppl: perplexity and divergence of packed caches, paired against the dense one.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/ablation.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/progress.h"
#include "cli/table.h"
#include "core/env.h"
#include "core/isa.h"
#include "headq/error.h"
#include "runner/perplexity.h"

namespace headq {
namespace {

struct PplArguments {
  std::string model;
  std::string text;
  std::string profile;
  std::vector<std::string> specs;
  std::string layers;
  bool ablate = false;
  std::vector<std::string> calibration_texts;
  std::string format = "table";
  int n_ctx = 2048;
  int n_chunks = -1;
  int n_batch = 512;
  int n_ubatch = 512;
  int n_threads = default_threads();
  int window = CacheSpec().window;
  int sinks = CacheSpec().sinks;
};

std::vector<CacheSpec> parse_specs(const PplArguments& args) {
  std::vector<CacheSpec> specs;
  if (args.ablate && (args.specs.size() != 1 || args.calibration_texts.empty())) {
    throw Error(ErrorCode::kInvalidArgument,
                "--ablate takes one --kv and at least one --calibrate TEXT");
  }
  for (const std::string& text : args.specs) {
    CacheSpec spec;
    spec.kv = KvSpec::parse(text);
    spec.window = args.window;
    spec.sinks = args.sinks;
    spec.parse_layers(args.layers);
    spec.validate();
    if (spec.needs_profile() && args.profile.empty() && !args.ablate) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("--kv {} needs a profile: headq calibrate makes one for --profile", text));
    }
    specs.push_back(spec);
  }
  return specs;
}

std::string isa() { return std::string(isa_name(select_isa(Environment::read().isa))); }

std::string cell(const Estimate& e, int digits, double scale = 1) {
  return std::isnan(e.error)
             ? fmt::format("{:.{}f}", scale * e.value, digits)
             : fmt::format("{:.{}f} ± {:.{}f}", scale * e.value, digits, scale * e.error, digits);
}

std::string bits_cell(double bits) { return bits > 0 ? fmt::format("{:.3f}", bits) : "-"; }

std::string mebibytes(uint64_t bytes) {
  return fmt::format("{:.2f}", static_cast<double>(bytes) / (1 << 20));
}

std::string to_table(const PplArguments& args, const PerplexityReport& report) {
  Table table({"keys/values", "true bits", "packed bits", "PPL", "PPL/dense", "KLD", "top-1 %",
               "cache MiB"});
  table.add_row({"dense (reference)", bits_cell(report.dense_cache.true_bits()),
                 bits_cell(report.dense_cache.packed_bits()), cell(report.dense_ppl, 4), "-", "-",
                 "-", mebibytes(report.dense_cache.cache_bytes())});
  for (const PerplexityRow& row : report.rows) {
    const PairedSummary& s = row.summary;
    table.add_row({row.name, bits_cell(row.cache.true_bits()), bits_cell(row.cache.packed_bits()),
                   cell(s.ppl, 4), cell(s.ppl_ratio, 4), cell(s.kld, 5), cell(s.top1, 2, 100),
                   mebibytes(row.cache.cache_bytes())});
  }
  return fmt::format(
      "{}\n{} on {}: {} tokens scored in {} chunks; -c {} -b {} -ub {} -t {}, "
      "window {}, sinks {}, {}\n",
      table.to_string(), base_name(args.model), base_name(args.text), report.n_scored,
      report.n_chunks, args.n_ctx, args.n_batch, args.n_ubatch, args.n_threads, args.window,
      args.sinks, isa());
}

nlohmann::ordered_json to_json(const Estimate& e) {
  return {{"value", e.value}, {"error", e.error}};  // not a number becomes null
}

nlohmann::ordered_json to_json(const CacheStats& stats) {
  return {{"true_bits", stats.true_bits()},
          {"packed_bits", stats.packed_bits()},
          {"bytes", stats.cache_bytes()},
          {"packed_bytes", stats.packed_bytes},
          {"dense_bytes", stats.dense_bytes},
          {"meta_bytes", stats.meta_bytes},
          {"profile_bytes", stats.profile_bytes},
          {"elements", stats.n_elements},
          {"packed_elements", stats.packed_elements},
          {"tokens", stats.n_tokens}};
}

std::string to_json(const PplArguments& args, const PerplexityReport& report) {
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const PerplexityRow& row : report.rows) {
    const PairedSummary& s = row.summary;
    rows.push_back({{"kv", row.name},
                    {"ppl", to_json(s.ppl)},
                    {"ppl_ratio", to_json(s.ppl_ratio)},
                    {"ln_ppl_ratio", to_json(s.ln_ppl_ratio)},
                    {"kld", to_json(s.kld)},
                    {"kld_median", s.kld_median},
                    {"kld_p90", s.kld_p90},
                    {"kld_p99", s.kld_p99},
                    {"kld_max", s.kld_max},
                    {"top1", to_json(s.top1)},
                    {"rms_dp", to_json(s.rms_dp)},
                    {"cache", to_json(row.cache)}});
  }
  const nlohmann::ordered_json out = {
      {"model", base_name(args.model)},
      {"text", base_name(args.text)},
      {"profile", args.profile.empty() ? "" : base_name(args.profile)},
      {"n_ctx", args.n_ctx},
      {"n_batch", args.n_batch},
      {"n_ubatch", args.n_ubatch},
      {"n_threads", args.n_threads},
      {"window", args.window},
      {"sinks", args.sinks},
      {"isa", isa()},
      {"n_chunks", report.n_chunks},
      {"n_scored", report.n_scored},
      {"dense", {{"ppl", to_json(report.dense_ppl)}, {"cache", to_json(report.dense_cache)}}},
      {"rows", rows}};
  return out.dump(2) + "\n";
}

PerplexityReport measure(const PplArguments& args) {
  const std::vector<CacheSpec> specs = parse_specs(args);
  const TextFile file = read_text(args.text);
  const Model model = Model::load(args.model, Device::kPlugin);
  check_sizes(model, args.n_ctx, args.n_batch, args.n_ubatch);
  const ChunkedText text(file.name, model.tokenize(file.text), args.n_ctx, model.bos());
  TempFolder folder;
  const std::vector<CacheCandidate> candidates =
      args.ablate ? ablation(model, specs[0], args.calibration_texts, args.n_threads, folder)
                  : candidates_of(specs, args.profile);
  Progress progress("ppl");
  return measure_perplexity(
      model, text, candidates,
      {.n_chunks = args.n_chunks,
       .n_batch = args.n_batch,
       .n_ubatch = args.n_ubatch,
       .n_threads = args.n_threads,
       .progress = [&](size_t done, size_t total) { progress.update(done, total); }});
}

void run_ppl(const PplArguments& args) {
  const PerplexityReport report = measure(args);
  fmt::print("{}", args.format == "json" ? to_json(args, report) : to_table(args, report));
}

}  // namespace

CLI::App* add_ppl_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("ppl", "Measure perplexity and divergence of packed caches against dense");
  const auto args = std::make_shared<PplArguments>();
  command->add_option("-m,--model", args->model, "Model (GGUF)")->required();
  command->add_option("-f,--file", args->text, "Text to score")->required();
  command
      ->add_option("--kv", args->specs,
                   "Codec of keys and values, K/V or one for both; once for each row of the table")
      ->required()
      ->allow_extra_args(false);
  command->add_flag("--ablate", args->ablate,
                    "Measure --kv once as it is and once with each part of the method changed, from "
                    "one calibration");
  command
      ->add_option("--calibrate", args->calibration_texts,
                   "Calibration text of --ablate; several are mixed")
      ->allow_extra_args(false);
  command->add_option("--kv-layer", args->layers, "Codecs of single layers, L:K/V[,L:K/V...]");
  command->add_option("--profile", args->profile, "Profile that headq calibrate wrote");
  command->add_option("--window", args->window, "Latest tokens that are read dense")
      ->capture_default_str();
  command->add_option("--sinks", args->sinks, "First tokens that stay dense")
      ->capture_default_str();
  command->add_option("-c,--ctx-size", args->n_ctx, "Tokens of a chunk")->capture_default_str();
  command->add_option("--chunks", args->n_chunks, "Chunks to score, -1: all the text has")
      ->capture_default_str();
  command->add_option("-b,--batch-size", args->n_batch, "Tokens decoded in one call")
      ->capture_default_str();
  command->add_option("--ubatch-size", args->n_ubatch, "Tokens computed at once (-ub)")
      ->capture_default_str();
  add_threads_option(*command, args->n_threads);
  add_format_option(*command, args->format);
  command->callback([args] { run_ppl(*args); });
  return command;
}

}  // namespace headq
