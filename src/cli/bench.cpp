// headq bench: speed and memory of packed caches beside llama.cpp's own, in one run.

#include "runner/bench.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>

#include "cli/bench_report.h"
#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "core/env.h"
#include "core/file.h"
#include "core/isa.h"
#include "headq/error.h"
#include "headq/model_info.h"
#include "headq/profile.h"
#include "runner/text.h"

namespace headq {
namespace {

constexpr const char* kReference = "f16";
constexpr int kMaxDepth = 1 << 20;
constexpr int kMaxTokens = 1 << 16;
constexpr const char* kKernelsProgram = "headq-bench-kernels";

struct BenchArguments {
  std::string model;
  std::string text;
  std::optional<std::string> profile;
  std::vector<std::string> specs;
  std::string layers;
  std::vector<std::string> cache_types = {kReference, "q8_0", "q4_0"};
  std::vector<int> depths = {0, 4096};
  std::vector<std::string> outputs;
  std::optional<std::string> kernels;
  std::string format = "table";
  int n_gen = BenchPlan().n_gen;
  int n_prompt = BenchPlan().n_prompt;
  int n_repetitions = BenchPlan().n_repetitions;
  int n_ubatch = BenchSettings().n_ubatch;
  int n_threads = default_threads();
  int window = CacheSpec().window;
  int sinks = CacheSpec().sinks;
};

std::string extension(const std::string& path) {
  return std::filesystem::path(path).extension().string();
}

void check_outputs(const std::vector<std::string>& paths) {
  for (const std::string& path : paths) {
    const std::string end = extension(path);
    if (end != ".svg" && end != ".json" && end != ".txt") {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("-o {} ends neither in .svg (plot) nor .json nor .txt (table)", path));
    }
    check_writable(path);
  }
}

// What is measured unless --kv says it: what the profile holds, and codecs that any model can have.
std::vector<std::string> default_specs(const std::string& profile) {
  if (profile.empty()) return {"kivi4/kivi2", "kivi2/kivi2", "kivi2+hq4x4@random/kivi2"};
  const std::string nib = Profile::load(profile).nib;
  if (nib.empty()) return {"kivi2/kivi2", "kivi2+hq4x4/kivi2"};
  return {nib, "kivi2+hq4x4/kivi2"};
}

std::vector<CacheSpec> parse_specs(const BenchArguments& args, const std::string& profile) {
  std::vector<CacheSpec> specs;
  for (const std::string& text : args.specs.empty() ? default_specs(profile) : args.specs) {
    CacheSpec& spec = specs.emplace_back();
    spec.kv = KvSpec::parse(text);
    spec.window = args.window;
    spec.sinks = args.sinks;
    spec.parse_layers(args.layers);
    spec.validate();
    if (spec.needs_profile() && profile.empty()) {
      throw Error(
          ErrorCode::kInvalidArgument,
          fmt::format("--kv {} needs a profile: headq calibrate makes one for --profile", text));
    }
  }
  return specs;
}

// Before any process starts, so that the reason is not lost behind a long fill.
void check_model(const BenchArguments& args, const std::vector<CacheSpec>& specs,
                 const std::string& profile_path) {
  const ModelInfo model = ModelInfo::load(args.model);
  if (const std::string why = model.why_unsupported(); !why.empty()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot serve {}: {}", args.model, why));
  }
  if (profile_path.empty()) return;
  const Profile profile = Profile::load(profile_path);
  if (const std::string why = model.why_mismatch(profile); !why.empty()) {
    throw Error(ErrorCode::kMismatch, fmt::format("profile '{}': {}", profile_path, why));
  }
  for (const CacheSpec& spec : specs) {
    for (const KvSpec& kv : spec.all()) {
      if (const std::string why = profile.why_lacks(kv); !why.empty()) {
        throw Error(ErrorCode::kMismatch, why);
      }
    }
  }
}

// The reference first, then llama.cpp's other types, then HeadQ's.
std::vector<BenchCandidate> make_candidates(const BenchArguments& args,
                                            const std::vector<CacheSpec>& specs,
                                            const std::string& profile) {
  std::vector<BenchCandidate> out = {{.name = kReference, .cpu_cache = kReference}};
  for (const std::string& type : args.cache_types) {
    check_cpu_cache(type);
    if (type != kReference) out.push_back({.name = type, .cpu_cache = type});
  }
  for (const CacheCandidate& c : candidates_of(specs, profile)) {
    out.push_back({.name = c.name,
                   .device = Device::kPlugin,
                   .cpu_cache = kReference,
                   .cache = c.cache,
                   .profile = c.profile});
  }
  return out;
}

BenchReport plan_bench(const BenchArguments& args) {
  if (args.model.empty()) throw Error(ErrorCode::kInvalidArgument, "-m MODEL is missing");
  if (args.n_gen == 0 && args.n_prompt == 0) {
    throw Error(ErrorCode::kInvalidArgument, "-n 0 and -p 0 leave nothing to measure");
  }
  const std::string profile = args.profile.value_or(Environment::read().profile);
  const std::vector<CacheSpec> specs = parse_specs(args, profile);
  check_model(args, specs, profile);

  BenchReport report;
  report.model = base_name(args.model);
  report.text = args.text.empty() ? "" : base_name(args.text);
  report.profile = profile.empty() ? "" : base_name(profile);
  report.isa = isa_name(select_isa(Environment::read().isa));
  report.window = args.window;
  report.sinks = args.sinks;
  report.plan.depths = args.depths;
  std::sort(report.plan.depths.begin(), report.plan.depths.end());
  const auto end = std::unique(report.plan.depths.begin(), report.plan.depths.end());
  report.plan.depths.erase(end, report.plan.depths.end());
  report.plan.n_gen = args.n_gen;
  report.plan.n_prompt = args.n_prompt;
  report.plan.n_repetitions = args.n_repetitions;
  report.plan.n_fill = args.n_ubatch;
  const int most = report.plan.depths.back() + std::max(args.n_gen + 1, args.n_prompt);
  report.settings = {.model = args.model,
                     .text = args.text,
                     .n_ctx = (most + 255) / 256 * 256,
                     .n_ubatch = args.n_ubatch,
                     .n_threads = args.n_threads};
  report.candidates = make_candidates(args, specs, profile);
  return report;
}

void measure(BenchReport& report) {
  std::vector<std::unique_ptr<BenchSubject>> subjects;
  std::vector<BenchSubject*> pointers;
  for (const BenchCandidate& candidate : report.candidates) {
    subjects.push_back(make_subject_process(candidate, report.settings));
    pointers.push_back(subjects.back().get());
  }
  Progress progress("bench");
  report.plan.progress = [&](size_t done, size_t total) { progress.update(done, total); };
  report.cells = run_bench(pointers, report.plan);
  report.plan.progress = {};
}

std::string rendered(const BenchReport& report, const std::string& kind) {
  if (kind == ".svg") return to_svg(report);
  return kind == ".json" ? to_json(report) : to_table(report);
}

// Becomes the program of the kernels' benchmarks.
[[noreturn]] void run_kernels(const BenchArguments& args) {
  const auto self = std::filesystem::read_symlink("/proc/self/exe");
  const std::string program = (self.parent_path() / kKernelsProgram).string();
  std::vector<std::string> command = {program};
  if (!args.kernels->empty()) command.push_back("--benchmark_filter=" + *args.kernels);
  if (args.format == "json") command.push_back("--benchmark_format=json");
  for (const std::string& path : args.outputs) {
    if (extension(path) != ".json") {
      throw Error(ErrorCode::kInvalidArgument,
                  fmt::format("-o {}: --kernels writes a .json file only", path));
    }
    command.push_back("--benchmark_out=" + path);
  }
  std::vector<char*> argv;
  for (std::string& word : command) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  throw Error(ErrorCode::kIo, fmt::format("cannot run {}: {}; -DHEADQ_BUILD_BENCH=ON builds it",
                                          program, std::generic_category().message(errno)));
}

void run_bench_command(const BenchArguments& args) {
  if (args.kernels) run_kernels(args);
  check_outputs(args.outputs);
  BenchReport report = plan_bench(args);
  measure(report);
  for (const std::string& path : args.outputs) {
    write_file(path, as_bytes(rendered(report, extension(path))));
  }
  fmt::print("{}", rendered(report, args.format == "json" ? ".json" : ".txt"));
}

}  // namespace

CLI::App* add_bench_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand(
      "bench", "Measure speed and memory of packed caches beside llama.cpp's own");
  const auto args = std::make_shared<BenchArguments>();
  command->add_option("-m,--model", args->model, "Model (GGUF)");
  command->add_option("-f,--file", args->text,
                      "Text that fills the cache; without it pseudo-random tokens");
  command->add_option("-d,--depth", args->depths, "Tokens in the cache, N,N...")
      ->delimiter(',')
      ->check(CLI::Range(0, kMaxDepth))
      ->capture_default_str();
  command
      ->add_option("--kv", args->specs,
                   "Codec of keys and values, K/V or one for both; once for each cache [what the "
                   "profile was calibrated for and kivi2+hq4x4/kivi2]")
      ->allow_extra_args(false);
  command->add_option("--kv-layer", args->layers, "Codecs of single layers, L:K/V[,L:K/V...]");
  command->add_option("--profile", args->profile,
                      "Profile that headq calibrate wrote [HEADQ_PROFILE]");
  command
      ->add_option("--cache-type", args->cache_types,
                   "llama.cpp's own types to measure, T,T...; f16 always is")
      ->delimiter(',')
      ->capture_default_str();
  command->add_option("-n,--n-gen", args->n_gen, "Tokens generated one at a time, 0: none")
      ->check(CLI::Range(0, kMaxTokens))
      ->capture_default_str();
  command->add_option("-p,--n-prompt", args->n_prompt, "Tokens of a prompt, 0: none")
      ->check(CLI::Range(0, kMaxTokens))
      ->capture_default_str();
  command->add_option("-r,--repetitions", args->n_repetitions, "Repetitions")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  command->add_option("--window", args->window, "Latest tokens that are read dense")
      ->capture_default_str();
  command->add_option("--sinks", args->sinks, "First tokens that stay dense")
      ->capture_default_str();
  command->add_option("--ubatch-size", args->n_ubatch, "Tokens computed at once (-ub)")
      ->check(CLI::Range(1, kMaxTokens))
      ->capture_default_str();
  add_threads_option(*command, args->n_threads);
  add_format_option(*command, args->format);
  command
      ->add_option("-o,--output", args->outputs,
                   "Also write FILE.svg (a plot), FILE.json or FILE.txt; may be repeated")
      ->allow_extra_args(false);
  command
      ->add_option("--kernels", args->kernels,
                   "Run the benchmarks of the kernels instead, those whose name this regular "
                   "expression finds")
      ->expected(0, 1);
  command->callback([args] { run_bench_command(*args); });
  return command;
}

}  // namespace headq
