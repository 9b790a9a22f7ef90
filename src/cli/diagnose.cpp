// headq diagnose: the experiments behind the codecs, on a model and a text of the user's own.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/diagnose_page.h"
#include "cli/diagnose_report.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/temp_folder.h"
#include "core/file.h"
#include "headq/error.h"
#include "headq/spec.h"
#include "runner/full_model.h"
#include "runner/head_samples.h"

namespace headq {
namespace {

constexpr int kMostDefaultContext = 1024;

struct DiagnoseArguments {
  std::string model;
  std::string text;
  std::vector<std::string> outputs;
  std::string format = "table";
  int n_ctx = 0;
  int n_chunks = HeadSampleOptions().n_chunks;
  int n_calibration = HeadSampleOptions().n_calibration;
  int n_full_model = -1;  // chunks of experiment 6, -1: n_chunks
  int n_heads = HeadSampleOptions().n_heads;
  int n_queries = SamplerOptions().n_queries;
  int n_threads = default_threads();
  uint64_t seed = BootstrapOptions().seed;
};

HeadSampleOptions sample_options(const DiagnoseArguments& args) {
  HeadSampleOptions options;
  options.n_calibration = args.n_calibration;
  options.n_chunks = args.n_chunks;
  options.n_heads = args.n_heads;
  options.sampler.n_queries = args.n_queries;
  options.nib_rates.assign(kFullModelBits.begin(), kFullModelBits.end());
  options.n_threads = args.n_threads;
  return options;
}

// Chunks of experiment 6; the text must have them behind those for calibration.
int full_model_chunks(const DiagnoseArguments& args, const ChunkedText& text) {
  const int rest = text.n_chunks() - args.n_calibration;
  const int n = args.n_full_model == -1 ? args.n_chunks : args.n_full_model;
  if (n < 0 || n > rest) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--full-model-chunks {} is not in 0..{}, the chunks of {} tokens that "
                            "'{}' has after {} for calibration",
                            n, rest, text.n_ctx(), text.name(), args.n_calibration));
  }
  return n;
}

HeadSamples collect(const DiagnoseArguments& args, const Model& model, const ChunkedText& text) {
  HeadSampleOptions options = sample_options(args);
  std::optional<Progress> progress("diagnose: read"), fit_progress;
  options.progress = [&](size_t done, size_t total) { progress->update(done, total); };
  options.fit_progress = [&](size_t done, size_t total) {
    progress.reset();
    if (!fit_progress) fit_progress.emplace("diagnose: fit codes");
    fit_progress->update(done, total);
  };
  return collect_head_samples(model, args.model, text, options);
}

Diagnosis measure(const DiagnoseArguments& args, std::span<const HeadSample> samples) {
  DiagnosisOptions options;
  options.bootstrap.n_threads = args.n_threads;
  options.bootstrap.seed = args.seed;
  Progress progress("diagnose: measure");
  options.progress = [&](size_t done, size_t total) { progress.update(done, total); };
  return diagnose(samples, options);
}

bool is_page(const std::string& path) { return path.ends_with(".html"); }

// Everything about the outputs that can be found out before a long run.
void check_outputs(const DiagnoseArguments& args) {
  bool page = args.format == "html";
  for (const std::string& path : args.outputs) {
    if (!is_page(path) && !path.ends_with(".json")) {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("-o {}: a report's name ends with .html or .json", path));
    }
    page = page || is_page(path);
    check_writable(path);
  }
  if (page) check_page_parts(installed_page_parts());
}

std::optional<FullModel> run_full_model(const DiagnoseArguments& args, const Model& model,
                                        const ChunkedText& text,
                                        std::span<const Profile> profiles) {
  const int n_chunks = full_model_chunks(args, text);
  if (n_chunks == 0) return std::nullopt;
  const TempFolder folder;
  std::vector<RateProfile> files;
  for (const Profile& profile : profiles) {
    const double rate = KvSpec::parse(profile.nib).k.rate;
    files.push_back({rate, folder.file(fmt::format("nib{}.gguf", rate))});
    profile.save(files.back().path);
  }
  Progress progress("diagnose: whole model");
  return measure_full_model(
      model, text.part(args.n_calibration, n_chunks), files,
      {.n_threads = args.n_threads,
       .progress = [&](size_t done, size_t total) { progress.update(done, total); }});
}

void run_diagnose(const DiagnoseArguments& args) {
  check_outputs(args);
  const TextFile file = read_text(args.text);
  const Model model = Model::load(args.model, Device::kPlugin);
  const int n_ctx =
      args.n_ctx != 0 ? args.n_ctx : std::min(model.n_ctx_train(), kMostDefaultContext);
  const ChunkedText text(file.name, model.tokenize(file.text), n_ctx, model.bos());
  check_head_samples(model, args.model, text, sample_options(args));
  full_model_chunks(args, text);
  DiagnosisSource source;
  source.model = base_name(args.model);
  source.text = file.name;
  source.n_ctx = n_ctx;
  source.n_calibration = args.n_calibration;
  source.n_chunks = args.n_chunks;
  source.window = SamplerOptions().window;
  source.sinks = SamplerOptions().sinks;
  source.n_replicates = BootstrapOptions().n_replicates;
  source.seed = args.seed;
  HeadSamples heads = collect(args, model, text);
  const Diagnosis diagnosis = measure(args, heads.samples);
  heads.samples.clear();  // large, and the whole model wants memory, too
  const std::optional<FullModel> full_model = run_full_model(args, model, text, heads.profiles);
  const std::string json = to_json(source, diagnosis, full_model);
  const auto page = [&] { return to_page(json, installed_page_parts()); };
  for (const std::string& path : args.outputs) {
    write_file(path, as_bytes(is_page(path) ? page() : json));
  }
  if (args.format == "table") {
    fmt::print("{}", to_tables(source, diagnosis, full_model));
  } else {
    fmt::print("{}", args.format == "html" ? page() : json);
  }
}

}  // namespace

CLI::App* add_diagnose_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand(
      "diagnose", "Show on a model and a text which errors of a cache attention sees");
  const auto args = std::make_shared<DiagnoseArguments>();
  command->add_option("-m,--model", args->model, "Model (GGUF)")->required();
  command
      ->add_option("-f,--file", args->text,
                   "Text: its first chunks make the bases, the next ones are measured")
      ->required();
  command
      ->add_option("-o,--output", args->outputs,
                   "Also write the report here: a page (.html) or JSON (.json); may be repeated")
      ->allow_extra_args(false);
  command->add_option("-c,--ctx-size", args->n_ctx,
                      "Tokens of a chunk (default: the model's training context, at most 1024)");
  command->add_option("--chunks", args->n_chunks, "Chunks to measure")->capture_default_str();
  command
      ->add_option("--calibration-chunks", args->n_calibration, "Chunks before them, for the bases")
      ->capture_default_str();
  command->add_option("--full-model-chunks", args->n_full_model,
                      "Chunks that the whole model runs with every cache, 0: leave that experiment "
                      "out (default: as --chunks)");
  command->add_option("--heads", args->n_heads, "Most KV heads, evenly spaced over the model")
      ->capture_default_str();
  command->add_option("--queries", args->n_queries, "Positions a chunk at which queries are taken")
      ->capture_default_str();
  command->add_option("--seed", args->seed, "Seed of the bootstrap")->capture_default_str();
  add_threads_option(*command, args->n_threads);
  add_format_option(*command, args->format, {"table", "json", "html"});
  command->callback([args] { run_diagnose(*args); });
  return command;
}

}  // namespace headq
