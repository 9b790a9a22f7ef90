#include "cli/program_args.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <iterator>
#include <string_view>

#include "headq/error.h"

namespace headq {
namespace {

constexpr std::string_view kDevice = "HEADQ0";
constexpr std::string_view kAllLayers = "999";  // llama-bench knows no "all"
constexpr int kUsualLayers = 99;                // what people write for "all"

using Names = std::vector<std::string_view>;

constexpr std::string_view kModelNames[] = {"-m", "--model"};
constexpr std::string_view kDraftNames[] = {
    "-md",   "--model-draft",   "--spec-draft-model", "-hfd",
    "-hfrd", "--hf-repo-draft", "--spec-draft-hf"};
constexpr std::string_view kProjectorNames[] = {"-mm", "--mmproj", "-mmu", "--mmproj-url"};

bool is_in(std::string_view text, const auto& list) {
  return std::find(std::begin(list), std::end(list), text) != std::end(list);
}

// llama.cpp takes underscores for dashes in long names.
std::string normalized(const std::string& arg) {
  std::string out = arg;
  if (out.starts_with("--")) std::replace(out.begin(), out.end(), '_', '-');
  return out;
}

// How a program is told about devices.
enum class Kind {
  kCommon,  // llama.cpp's common options
  kBench,   // llama-bench: lists of values, flags with values
  kNone,    // not at all
};

struct Program {
  Kind kind;
  size_t n_leading;  // arguments that must stay in front: a subcommand
};

// program: a path or name.
Program classify(const std::string& program, const std::vector<std::string>& args) {
  const std::string name = std::filesystem::path(program).filename().string();
  constexpr std::string_view kNoCache[] = {
      "llama-quantize", "llama-gguf",        "llama-gguf-hash", "llama-gguf-split",
      "llama-tokenize", "llama-export-lora", "llama-simple",    "llama-simple-chat",
      "rpc-server",     "ggml-rpc-server"};
  if (name == "llama-bench") return {Kind::kBench, 0};
  if (is_in(name, kNoCache)) return {Kind::kNone, 0};
  if (name != "llama") return {Kind::kCommon, 0};
  constexpr std::string_view kCommands[] = {
      "serve", "server", "cli", "client", "completion", "complete", "batched-bench", "perplexity"};
  const std::string command = args.empty() ? "" : args[0];
  if (command == "bench") return {Kind::kBench, 1};
  return {is_in(command, kCommands) ? Kind::kCommon : Kind::kNone, 1};
}

// The elements of a list as llama-bench reads one; the common options take one value as it is.
std::vector<std::string> split_values(const std::string& text, Kind kind) {
  if (kind != Kind::kBench) return {text};
  std::vector<std::string> out = {""};
  for (char c : text) {
    if (c == ',') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

bool offloads_all(const std::string& value, int n_layer) {
  if (value == "all") return true;
  int n = 0;
  const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), n);
  // Layer n_layer is the output; it has no cache, but llama.cpp counts it first.
  return error == std::errc() && end == value.data() + value.size() &&
         n >= (n_layer > 0 ? n_layer + 1 : kUsualLayers);
}

// An option that decides where the cache lives and what it is made of.
struct Rule {
  Names names;
  std::string_view wanted;  // for the message
  bool (*allows)(const std::string& value, int n_layer);
  bool seen = false;
};

std::vector<Rule> rules() {
  const auto is_device = [](const std::string& v, int) { return v == kDevice; };
  const auto is_on = [](const std::string& v, int) {
    return is_in(v, Names{"on", "enabled", "true", "1"});
  };
  const auto is_f16 = [](const std::string& v, int) { return v == "f16"; };
  const auto is_whole = [](const std::string& v, int) { return v == "none" || v == "layer"; };
  const auto is_none = [](const std::string& v, int) { return v == "none"; };
  return {{{"-dev", "--device"}, "--device HEADQ0", is_device},
          {{"-ngl", "--gpu-layers", "--n-gpu-layers"}, "all layers (-ngl 999)", offloads_all},
          {{"-fa", "--flash-attn"}, "-fa on", is_on},
          {{"-ctk", "--cache-type-k"}, "-ctk f16, which headq packs", is_f16},
          {{"-ctv", "--cache-type-v"}, "-ctv f16, which headq packs", is_f16},
          {{"-sm", "--split-mode"}, "-sm layer or none", is_whole},
          {{"-devd", "--device-draft", "--spec-draft-device"}, "-devd none", is_none}};
}

// Places in rules() of what is added when it is not there.
constexpr size_t kDeviceRule = 0, kLayersRule = 1, kFlashRule = 2, kDraftDeviceRule = 6;

[[noreturn]] void conflict(const std::string& what, std::string_view wanted) {
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("'{}' stands against headq with, which needs {}", what, wanted));
}

struct Seen {
  std::vector<Rule> rules;
  bool draft = false;
  bool projector = false;
  bool projector_device = false;
};

// -nkvo is a flag in the common options and takes 0 or 1 in llama-bench.
void check_offload(const std::string& name, const std::string* value, Kind kind) {
  if (name != "-nkvo" && name != "--no-kv-offload") return;
  if (kind == Kind::kCommon) conflict(name, "the cache on its device");
  for (const std::string& v :
       value != nullptr ? split_values(*value, kind) : std::vector<std::string>()) {
    if (v != "0") conflict(name + " " + *value, "the cache on its device (-nkvo 0)");
  }
}

Seen check_arguments(const std::vector<std::string>& args, Kind kind, int n_layer) {
  Seen seen{.rules = rules()};
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string name = normalized(args[i]);
    const std::string* value = i + 1 < args.size() ? &args[i + 1] : nullptr;
    check_offload(name, value, kind);
    seen.draft |= is_in(name, kDraftNames);
    seen.projector |= is_in(name, kProjectorNames);
    seen.projector_device |= is_in(name, Names{"-mmdev", "--mmproj-device", "--no-mmproj-offload"});
    for (Rule& rule : seen.rules) {
      if (!is_in(name, rule.names) || value == nullptr) continue;
      rule.seen = true;
      for (const std::string& v : split_values(*value, kind)) {
        if (!rule.allows(v, n_layer)) conflict(args[i] + " " + *value, rule.wanted);
      }
      ++i;  // a value is not looked at as a name
    }
  }
  return seen;
}

}  // namespace

std::vector<std::string> model_arguments(const std::vector<std::string>& args) {
  std::vector<std::string> out;
  for (size_t i = 0; i < args.size(); ++i) {
    const std::string name = normalized(args[i]);
    if (is_in(name, kModelNames) && i + 1 < args.size()) {
      out.push_back(args[++i]);
    } else if (name.starts_with("--model=")) {
      out.push_back(args[i].substr(std::string_view("--model=").size()));
    }
  }
  return out;
}

std::vector<std::string> program_command(const std::string& program,
                                         const std::vector<std::string>& args, int n_layer) {
  const Program known = classify(program, args);
  if (known.kind == Kind::kNone) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} takes no --device, so headq cannot serve its cache", program));
  }
  const Seen seen = check_arguments(args, known.kind, n_layer);
  const auto leading =
      args.begin() + static_cast<ptrdiff_t>(std::min(known.n_leading, args.size()));
  std::vector<std::string> out = {program};
  out.insert(out.end(), args.begin(), leading);
  const auto add = [&out](auto... flags) { (out.emplace_back(flags), ...); };
  if (!seen.rules[kDeviceRule].seen) add("--device", kDevice);
  if (!seen.rules[kLayersRule].seen) add("-ngl", kAllLayers);
  if (!seen.rules[kFlashRule].seen) add("-fa", "on");
  if (seen.draft && !seen.rules[kDraftDeviceRule].seen) add("--device-draft", "none");
  if (seen.projector && !seen.projector_device) add("--no-mmproj-offload");
  out.insert(out.end(), leading, args.end());
  return out;
}

void check_program_environment(const char* (*get)(const char* name)) {
  const auto check = [get](const char* name, const Names& allowed, std::string_view wanted) {
    const char* value = get(name);
    if (value != nullptr && !is_in(value, allowed))
      conflict(fmt::format("{}={}", name, value), wanted);
  };
  check("LLAMA_ARG_CACHE_TYPE_K", {"", "f16"}, "f16, which it packs");
  check("LLAMA_ARG_CACHE_TYPE_V", {"", "f16"}, "f16, which it packs");
  check("LLAMA_ARG_KV_OFFLOAD", {"", "1", "on", "true", "enabled"}, "the cache on its device");
  check("LLAMA_ARG_NO_KV_OFFLOAD", {}, "the cache on its device");  // counts whatever it holds
  check("LLAMA_ARG_SPLIT_MODE", {"", "none", "layer"}, "layer or none");
}

}  // namespace headq
