// headq with: runs a llama.cpp program whose KV cache HeadQ holds. Whatever can be known to fail is
// refused before the program starts.

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "cli/commands.h"
#include "cli/locate.h"
#include "cli/program_args.h"
#include "core/env.h"
#include "core/isa.h"
#include "headq/error.h"
#include "headq/model_info.h"
#include "headq/profile.h"
#include "headq/spec.h"
#include "runner/plugin.h"

namespace headq {
namespace {

// What a profile without codes of nib serves best, and what needs no profile: without one keys need
// 4 bits to keep the text good.
constexpr const char* kDefaultWithoutNib = "kivi2+hq4x4/kivi2";
constexpr const char* kDefaultWithoutProfile = "kivi4/kivi2";

struct WithArguments {
  std::optional<std::string> kv;
  std::optional<std::string> kv_layer;
  std::optional<std::string> profile;
  std::optional<int> window;
  std::optional<int> sinks;
};

// What is passed on to the plugin.
struct Policy {
  CacheSpec spec;
  std::string kv_layer;
  std::string profile;  // absolute, or ""
};

// The option, else what the environment says, else the default.
int pick(const std::optional<int>& option, const char* variable, const std::string& text,
         int otherwise) {
  if (option) return *option;
  return text.empty() ? otherwise : parse_int(variable, text, 0, INT32_MAX);
}

std::string default_codecs(const std::string& profile_path) {
  if (profile_path.empty()) return kDefaultWithoutProfile;
  const std::string nib = Profile::load(profile_path).nib;
  return nib.empty() ? kDefaultWithoutNib : nib;
}

Policy make_policy(const WithArguments& args) {
  const Environment env = Environment::read();
  const std::string profile = args.profile.value_or(env.profile);
  std::string kv = args.kv.value_or(env.kv);
  if (!args.kv && kv.empty()) kv = default_codecs(profile);

  Policy policy;
  policy.kv_layer = args.kv_layer.value_or(env.kv_layer);
  policy.spec.kv = KvSpec::parse(kv);
  policy.spec.parse_layers(policy.kv_layer);
  policy.spec.window = pick(args.window, "HEADQ_WINDOW", env.window, policy.spec.window);
  policy.spec.sinks = pick(args.sinks, "HEADQ_SINKS", env.sinks, policy.spec.sinks);
  policy.spec.validate();
  if (policy.spec.needs_profile() && profile.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} needs a profile: headq calibrate makes one for --profile",
                            policy.kv_layer.empty() ? kv : kv + " with " + policy.kv_layer));
  }
  if (!profile.empty()) policy.profile = std::filesystem::absolute(profile).string();
  select_isa(env.isa);  // refuses a level that is not there
  return policy;
}

// The models that the program will load, each checked against what was asked for.
std::vector<ModelInfo> check_models(const Policy& policy, const std::vector<std::string>& paths) {
  if (!policy.profile.empty() && paths.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "a profile needs -m MODEL among the program's arguments, so that the two can be "
                "compared");
  }
  const Profile profile = policy.profile.empty() ? Profile() : Profile::load(policy.profile);
  for (const KvSpec& kv : policy.spec.all()) {
    if (const std::string why = profile.why_lacks(kv); !why.empty()) {
      throw Error(ErrorCode::kMismatch, why);
    }
  }
  std::vector<ModelInfo> models;
  for (const std::string& path : paths) {
    const ModelInfo& model = models.emplace_back(ModelInfo::load(path));
    if (const std::string why = model.why_unsupported(); !why.empty()) {
      throw Error(ErrorCode::kUnsupported, fmt::format("cannot serve {}: {}", path, why));
    }
    for (const auto& [il, kv] : policy.spec.layers) {
      if (il >= model.n_layer) {
        throw Error(ErrorCode::kInvalidArgument,
                    fmt::format("layer {} is overridden, {} has {}", il, path, model.n_layer));
      }
    }
    if (policy.profile.empty()) continue;
    if (const std::string why = model.why_mismatch(profile); !why.empty()) {
      throw Error(ErrorCode::kMismatch,
                  fmt::format("{} does not belong to {}: {}", policy.profile, path, why));
    }
  }
  return models;
}

std::vector<std::string> models_of(const std::vector<std::string>& args) {
  std::vector<std::string> paths = model_arguments(args);
  if (paths.empty()) {
    const char* named = std::getenv("LLAMA_ARG_MODEL");
    if (named != nullptr && *named != '\0') paths.emplace_back(named);
  }
  return paths;
}

void set_environment(const char* name, const std::string& value) {
  if (setenv(name, value.c_str(), 1) != 0) {
    throw Error(ErrorCode::kIo, fmt::format("cannot set {}", name));
  }
}

// GGML_BACKEND_PATH holds one file, so another backend cannot be loaded beside this one.
void set_plugin(const std::string& plugin) {
  constexpr const char* kVariable = "GGML_BACKEND_PATH";
  const char* other = std::getenv(kVariable);
  if (other != nullptr && *other != '\0' && other != plugin) {
    throw Error(ErrorCode::kMismatch,
                fmt::format("{} already names {}, it must be unset", kVariable, other));
  }
  set_environment(kVariable, plugin);
}

[[noreturn]] void run_program(const std::vector<std::string>& command) {
  std::vector<char*> argv;
  for (const std::string& arg : command) argv.push_back(const_cast<char*>(arg.c_str()));
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  throw Error(ErrorCode::kIo,
              fmt::format("cannot run {}: {}", command[0], std::generic_category().message(errno)));
}

[[noreturn]] void run_with(const WithArguments& args, const std::vector<std::string>& program) {
  if (program.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "no program to run: headq with [options] -- PROGRAM [ARGUMENTS]");
  }
  const std::vector<std::string> rest(program.begin() + 1, program.end());
  const Policy policy = make_policy(args);
  check_program_environment([](const char* name) -> const char* { return std::getenv(name); });
  int n_layer = 0;
  for (const ModelInfo& model : check_models(policy, models_of(rest))) {
    n_layer = std::max(n_layer, model.n_layer);
  }
  std::vector<std::string> command = program_command(program[0], rest, n_layer);
  command[0] = find_program(program[0]);
  set_plugin(find_plugin());
  set_environment("HEADQ_KV", policy.spec.kv.to_string());
  set_environment("HEADQ_KV_LAYER", policy.kv_layer);
  set_environment("HEADQ_PROFILE", policy.profile);
  set_environment("HEADQ_WINDOW", std::to_string(policy.spec.window));
  set_environment("HEADQ_SINKS", std::to_string(policy.spec.sinks));
  run_program(command);
}

}  // namespace

CLI::App* add_with_command(CLI::App& app, const std::vector<std::string>& program) {
  CLI::App* const command =
      app.add_subcommand("with", "Run a llama.cpp program with a packed KV cache");
  const auto args = std::make_shared<WithArguments>();
  command
      ->add_option("--kv", args->kv,
                   fmt::format("Codecs of keys and values, or one for both [HEADQ_KV, or what the "
                               "profile was calibrated for, or {} without a profile]",
                               kDefaultWithoutProfile))
      ->type_name("K/V");
  command
      ->add_option("--kv-layer", args->kv_layer,
                   "Codecs of single layers: L:K/V,L:K/V... [HEADQ_KV_LAYER]")
      ->type_name("LIST");
  command
      ->add_option("--profile", args->profile,
                   "What headq calibrate found out about the model [HEADQ_PROFILE]")
      ->type_name("FILE");
  command
      ->add_option("--window", args->window,
                   fmt::format("Most recent tokens read at full precision [HEADQ_WINDOW, or {}]",
                               CacheSpec().window))
      ->type_name("N");
  command
      ->add_option("--sinks", args->sinks,
                   fmt::format("First tokens kept at full precision [HEADQ_SINKS, or {}]",
                               CacheSpec().sinks))
      ->type_name("N");
  command->footer(
      "headq with [OPTIONS] -- PROGRAM [ARGUMENTS]\n"
      "PROGRAM is a path, or a name in the bin folder of the llama.cpp that headq was built for, "
      "or "
      "in PATH.\n"
      "ARGUMENTS are passed on as they are, behind the flags that put the cache on HeadQ's "
      "device:\n"
      "  --device HEADQ0 -ngl 999 -fa on\n"
      "A draft model (-md) and an image projector (--mmproj) stay on the CPU.");
  command->callback([args, &program] { run_with(*args, program); });
  return command;
}

}  // namespace headq
