#include "cli/program_args.h"

#include <gtest/gtest.h>

#include <map>

#include "core/error_of.h"

namespace headq {
namespace {

using Args = std::vector<std::string>;

constexpr auto kBadUsage = ErrorCode::kInvalidArgument;

Args joined(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

const Args kFlags = {"--device", "HEADQ0", "-ngl", "999", "-fa", "on"};

TEST(ProgramArgs, PutsTheFlagsInFrontAndPassesTheRestOn) {
  const Args args = {"-m", "a.gguf", "-p", "two  words", "", "-x", "[1,2]"};
  for (const char* program : {"llama-server", "llama-cli", "/usr/bin/llama-completion",
                              "llama-perplexity", "llama-batched-bench", "llama-bench", "other"}) {
    EXPECT_EQ(program_command(program, args, 0), joined(joined({program}, kFlags), args));
  }
}

TEST(ProgramArgs, KeepsASubcommandInFront) {
  EXPECT_EQ(program_command("llama", {"serve", "-m", "a"}, 0),
            joined(joined({"llama", "serve"}, kFlags), {"-m", "a"}));
  EXPECT_EQ(program_command("llama", {"bench", "-m", "a"}, 0),
            joined(joined({"llama", "bench"}, kFlags), {"-m", "a"}));
}

TEST(ProgramArgs, AddsNothingThatIsThere) {
  const Args args = {"-dev", "HEADQ0", "-ngl", "99", "-fa", "1"};
  EXPECT_EQ(program_command("llama-cli", args, 0), joined({"llama-cli"}, args));
  const Args others = {"--device", "HEADQ0", "--n_gpu_layers", "all", "--flash-attn", "on"};
  EXPECT_EQ(program_command("llama-cli", others, 0), joined({"llama-cli"}, others));
}

TEST(ProgramArgs, RefusesContradictions) {
  const Args kContradictions[] = {{"-dev", "CUDA0"},
                                  {"--device", "none"},
                                  {"--device", "HEADQ0,CUDA0"},
                                  {"-fa", "off"},
                                  {"-fa", "auto"},
                                  {"--flash-attn", "0"},
                                  {"-ctk", "q8_0"},
                                  {"--cache-type-v", "q4_0"},
                                  {"--cache_type_k", "f32"},
                                  {"-nkvo"},
                                  {"--no-kv-offload"},
                                  {"-ngl", "0"},
                                  {"--gpu-layers", "98"},
                                  {"-ngl", "auto"},
                                  {"-ngl", "99x"},
                                  {"-sm", "row"},
                                  {"--split-mode", "tensor"},
                                  {"-devd", "HEADQ0"}};
  for (const Args& args : kContradictions) {
    EXPECT_ERROR(program_command("llama-server", joined(args, {"-m", "a"}), 0), kBadUsage,
                 "'" + args[0]);
  }
}

TEST(ProgramArgs, TakesTheSameThingSaidInOtherWords) {
  for (const Args& args : {Args{"-ctk", "f16"},
                           {"-ctv", "f16"},
                           {"-kvo"},
                           {"-sm", "layer"},
                           {"-sm", "none"},
                           {"-devd", "none"}}) {
    EXPECT_EQ(program_command("llama-server", args, 0),
              joined(joined({"llama-server"}, kFlags), args));
  }
}

// The last ngl layers are offloaded, the output layer among them.
TEST(ProgramArgs, WantsAllLayersOfTheModelOnTheDevice) {
  EXPECT_NO_THROW(program_command("llama-cli", {"-ngl", "31"}, 30));
  EXPECT_ERROR(program_command("llama-cli", {"-ngl", "30"}, 30), kBadUsage, "'-ngl 30'");
  EXPECT_ERROR(program_command("llama-cli", {"-ngl", "99"}, 126), kBadUsage, "'-ngl 99'");
  EXPECT_NO_THROW(program_command("llama-cli", {"-ngl", "all"}, 126));
}

TEST(ProgramArgs, LooksIntoTheListsOfLlamaBench) {
  const auto bench = [](const Args& args) { return program_command("llama-bench", args, 0); };
  EXPECT_NO_THROW(bench({"-ctk", "f16,f16", "-fa", "on,1", "-nkvo", "0"}));
  EXPECT_ERROR(bench({"-ctk", "f16,q8_0"}), kBadUsage, "'-ctk f16,q8_0'");
  EXPECT_ERROR(bench({"-fa", "on,off"}), kBadUsage, "'-fa on,off'");
  EXPECT_ERROR(bench({"-ngl", "0,99"}), kBadUsage, "'-ngl 0,99'");
  EXPECT_ERROR(bench({"-dev", "HEADQ0,none"}), kBadUsage, "'-dev HEADQ0,none'");
  EXPECT_ERROR(bench({"-nkvo", "0,1"}), kBadUsage, "'-nkvo 0,1'");
}

TEST(ProgramArgs, RefusesProgramsWithoutADevice) {
  EXPECT_ERROR(program_command("llama-quantize", {"a", "b"}, 0), kBadUsage, "takes no --device");
  EXPECT_ERROR(program_command("/x/llama-simple", {}, 0), kBadUsage, "takes no --device");
  EXPECT_ERROR(program_command("llama", {"download"}, 0), kBadUsage, "takes no --device");
  EXPECT_ERROR(program_command("llama", {}, 0), kBadUsage, "takes no --device");
}

// The profile is the main model's, and the device holds nothing but caches.
TEST(ProgramArgs, KeepsDraftModelsAndProjectorsOnTheCpu) {
  EXPECT_EQ(program_command("llama-server", {"-md", "d.gguf"}, 0),
            joined(joined({"llama-server"}, kFlags), {"--device-draft", "none", "-md", "d.gguf"}));
  EXPECT_EQ(
      program_command("llama-server", {"--mmproj", "p.gguf"}, 0),
      joined(joined({"llama-server"}, kFlags), {"--no-mmproj-offload", "--mmproj", "p.gguf"}));
  const Args args = {"-md", "d", "-devd", "none", "--mmproj", "p", "--no-mmproj-offload"};
  EXPECT_EQ(program_command("llama-server", args, 0),
            joined(joined({"llama-server"}, kFlags), args));
}

TEST(ProgramArgs, FindsTheModels) {
  EXPECT_EQ(model_arguments({"-p", "x", "-m", "a.gguf"}), Args{"a.gguf"});
  EXPECT_EQ(model_arguments({"--model", "a", "-m", "b", "--model=c"}), (Args{"a", "b", "c"}));
  EXPECT_EQ(model_arguments({"-hf", "x/y", "-m"}), Args{});
}

std::map<std::string, const char*>& fake_environment() {
  static std::map<std::string, const char*> values;
  return values;
}

const char* fake_getenv(const char* name) {
  const auto it = fake_environment().find(name);
  return it != fake_environment().end() ? it->second : nullptr;
}

TEST(ProgramEnvironment, MayNotMoveOrRetypeTheCache) {
  const auto with = [](const char* name, const char* value) {
    fake_environment() = {{name, value}};
    check_program_environment(fake_getenv);
  };
  EXPECT_NO_THROW(with("LLAMA_ARG_THREADS", "2"));
  EXPECT_NO_THROW(with("LLAMA_ARG_CACHE_TYPE_K", "f16"));
  EXPECT_NO_THROW(with("LLAMA_ARG_KV_OFFLOAD", "1"));
  EXPECT_ERROR(with("LLAMA_ARG_CACHE_TYPE_V", "q8_0"), kBadUsage, "LLAMA_ARG_CACHE_TYPE_V=q8_0");
  EXPECT_ERROR(with("LLAMA_ARG_KV_OFFLOAD", "0"), kBadUsage, "LLAMA_ARG_KV_OFFLOAD=0");
  EXPECT_ERROR(with("LLAMA_ARG_NO_KV_OFFLOAD", ""), kBadUsage, "LLAMA_ARG_NO_KV_OFFLOAD=");
  EXPECT_ERROR(with("LLAMA_ARG_SPLIT_MODE", "row"), kBadUsage, "LLAMA_ARG_SPLIT_MODE=row");
}

}  // namespace
}  // namespace headq
