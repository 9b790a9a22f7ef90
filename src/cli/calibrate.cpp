// headq calibrate: runs texts through a model and writes the profile that codecs are made from.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <memory>
#include <optional>

#include "cli/commands.h"
#include "cli/options.h"
#include "cli/output.h"
#include "cli/progress.h"
#include "cli/temp_folder.h"
#include "headq/error.h"
#include "runner/calibration.h"
#include "runner/rate_split.h"

namespace headq {
namespace {

struct CalibrateArguments {
  std::string model;
  std::vector<std::string> texts;
  std::string kv = "nib2.5/nib2";
  std::string output;
  int n_ctx = 0;
  int n_chunks = -1;
  int n_threads = default_threads();
};

constexpr std::string_view kAuto = "auto:";

// The rate of "auto:<rate>", or nothing for other codecs. Throws Error(kInvalidArgument).
std::optional<double> auto_rate(const std::string& kv) {
  if (!kv.starts_with(kAuto)) return std::nullopt;
  const std::string rate = kv.substr(kAuto.size());
  if (rate.empty() || rate.find_first_not_of("0123456789.") != std::string::npos) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--kv {}: a number of bits from {} to {} belongs behind auto:", kv,
                            kMinRate, kMaxRate));
  }
  return CodecSpec::parse("nib" + rate).rate;
}

// The codecs to fit; those of a total rate that is split stand for both sides. Throws
// Error(kInvalidArgument).
KvSpec asked_codecs(const std::string& kv) {
  const std::optional<double> total = auto_rate(kv);
  const KvSpec spec = KvSpec::parse(total ? fmt::format("nib{}", *total) : kv);
  if (spec.k.wrong_sign != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--kv {}: '-last' is for reading a profile, not for making one", kv));
  }
  return spec;
}

struct Texts {
  std::vector<ChunkedText> chunked;
  std::vector<std::string> sources;
};

Texts read_texts(const Model& model, const CalibrateArguments& args) {
  const int n_ctx = args.n_ctx != 0 ? args.n_ctx : default_calibration_context(model);
  check_sizes(model, n_ctx, n_ctx, n_ctx);
  Texts texts;
  for (const std::string& path : args.texts) {
    const TextFile file = read_text(path);
    texts.chunked.emplace_back(file.name, model.tokenize(file.text), n_ctx, model.bos());
    texts.sources.push_back(file.source);
  }
  return texts;
}

// Progress of fitting; the clock starts with the first head.
NibOptions nib_options(const CalibrateArguments& args, std::optional<Progress>& progress) {
  NibOptions nib;
  nib.n_threads = args.n_threads;
  nib.progress = [&progress](size_t done, size_t total) {
    if (!progress) progress.emplace("fit codes");
    progress->update(done, total);
    if (done == total) progress.reset();
  };
  return nib;
}

Profile make_profile(const Model& model, const CalibrateArguments& args) {
  const std::optional<double> total = auto_rate(args.kv);
  const Texts texts = read_texts(model, args);
  std::optional<Progress> fit_progress;
  NibOptions nib = nib_options(args, fit_progress);
  nib.kv = asked_codecs(args.kv);
  std::optional<Progress> progress("calibrate");
  const Calibration calibration(
      model, texts.chunked,
      {.n_chunks = args.n_chunks,
       .n_threads = args.n_threads,
       .nib = nib,
       .progress = [&](size_t done, size_t n) { progress->update(done, n); }});
  progress.reset();
  std::optional<Profile> fitted;
  if (total) {
    const TempFolder folder;
    RateSplit split = split_rate(model, calibration, texts.chunked, *total, nib,
                                       folder.file("total.gguf"));
    fmt::print("{} bits are best split as {} (KLD {:.4f} by keys, {:.4f} by values at {} each)\n",
               *total, split.kv.to_string(), split.key_kld, split.value_kld, *total);
    nib.kv = split.kv;
    if (split.even.nib == nib.kv.to_string()) fitted = std::move(split.even);
  }
  Profile profile = fitted ? std::move(*fitted) : calibration.profile(nib);
  const int n_layers = static_cast<int>(profile.shapes.size());
  if (nib.kv.v.is_nib() && calibration.n_readouts() < n_layers) {
    fmt::print(stderr, "headq: values are coded without W_O, which was found for {} of {} layers\n",
               calibration.n_readouts(), n_layers);
  }
  profile.sources = texts.sources;
  return profile;
}

void run_calibrate(const CalibrateArguments& args) {
  asked_codecs(args.kv);
  check_writable(args.output);
  const Model model = Model::load(args.model, Device::kPlugin);
  const Profile profile = make_profile(model, args);
  profile.save(args.output);
  model.check_profile(args.output);
  CacheSpec cache;
  cache.kv = KvSpec::parse(profile.nib.empty() ? args.kv : profile.nib);
  Context(model, {.n_ctx = kMinContext, .cache = cache, .profile = args.output});
  fmt::print("{}: {} layers, {} KV heads, {} tokens in chunks of {} from {} text{}\n", args.output,
             profile.shapes.size(), profile.heads.size(), profile.n_tokens, profile.n_ctx,
             args.texts.size(), args.texts.size() == 1 ? "" : "s");
}

}  // namespace

CLI::App* add_calibrate_command(CLI::App& app) {
  CLI::App* const command =
      app.add_subcommand("calibrate", "Make the profile of a model from calibration texts");
  const auto args = std::make_shared<CalibrateArguments>();
  command->add_option("-m,--model", args->model, "Model (GGUF)")->required();
  command
      ->add_option("-f,--file", args->texts,
                   "Calibration text; several, each with its own -f, are mixed in equal shares")
      ->required()
      ->allow_extra_args(false);
  command->add_option("-o,--output", args->output, "Profile to write")->required();
  command
      ->add_option("--kv", args->kv,
                   "Codecs of keys and values, K/V, that the profile is to serve; codes of nib are "
                   "fitted for these rates. auto:B splits B bits per element between keys and "
                   "values by what they cost")
      ->capture_default_str();
  command->add_option("-c,--ctx-size", args->n_ctx,
                      "Tokens of a chunk (default: the model's training context, at most 2048)");
  command->add_option("--chunks", args->n_chunks,
                      "Chunks in all (default: 6, or what the texts can give)");
  add_threads_option(*command, args->n_threads);
  command->callback([args] { run_calibrate(*args); });
  return command;
}

}  // namespace headq
