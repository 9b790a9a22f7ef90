// headq inspect: what a profile or a model holds.

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <string_view>

#include "cli/commands.h"
#include "cli/table.h"
#include "core/file.h"
#include "core/gguf.h"
#include "headq/error.h"
#include "headq/model_info.h"
#include "headq/profile.h"

namespace headq {
namespace {

using Json = nlohmann::ordered_json;

struct InspectArguments {
  std::string file;
  std::string format = "table";
};

// Numbers of leading query directions that the table has a column for.
constexpr int kDirections[] = {1, 2, 4, 8, 16};

double sum(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0);
}

// Share of a spectrum's sum in its first n values; 0 for a spectrum of zeros.
double leading_share(std::span<const float> spectrum, int n) {
  const double total = sum(spectrum);
  const size_t count = std::min(static_cast<size_t>(n), spectrum.size());
  return total > 0 ? sum(spectrum.first(count)) / total : 0.0;
}

// exp of the entropy of the normalised spectrum: the number of equal directions that spread as
// much. 1 for one direction, d for d equal ones, 0 for a spectrum of zeros.
double effective_rank(std::span<const float> spectrum) {
  const double total = sum(spectrum);
  if (!(total > 0)) return 0.0;
  double entropy = 0.0;
  for (float value : spectrum) {
    const double p = value / total;
    if (p > 0) entropy -= p * std::log(p);
  }
  return std::exp(entropy);
}

// |E[k]| over the root of the summed variances: how far the keys lie from 0, in their own spread.
double mean_to_spread(const HeadProfile& head) {
  double square = 0.0;
  for (float x : head.key_mean) square += static_cast<double>(x) * x;
  const double variance = sum(head.key_variance);
  return variance > 0 ? std::sqrt(square / variance) : 0.0;
}

// Names come from files and may hold control characters.
std::string printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return c < ' '; }, '?');
  return text;
}

// --- Profiles

std::string size_text(uint64_t bytes) {
  if (bytes < 1 << 20) return fmt::format("{:.1f} KiB", static_cast<double>(bytes) / 1024);
  return fmt::format("{:.1f} MiB", static_cast<double>(bytes) / (1 << 20));
}

std::string percent(double share) { return fmt::format("{:.1f}", 100.0 * share); }

void print_heads(const Profile& p) {
  std::vector<std::string> header = {"layer", "head", "d_k", "d_v"};
  for (int n : kDirections) header.push_back(fmt::format("q {} %", n));
  header.insert(header.end(), {"q rank", "k rank", "k mean/std"});
  Table table(header);
  for (size_t entry = 0; entry < p.shapes.size(); ++entry) {
    const std::span<const HeadProfile> heads = p.layer_heads(static_cast<int>(entry));
    for (size_t h = 0; h < heads.size(); ++h) {
      const HeadProfile& head = heads[h];
      std::vector<std::string> row = {std::to_string(p.layer_ids[entry]), std::to_string(h),
                                      std::to_string(p.shapes[entry].d_k),
                                      std::to_string(p.shapes[entry].d_v)};
      for (int n : kDirections) row.push_back(percent(leading_share(head.query_spectrum, n)));
      row.push_back(fmt::format("{:.1f}", effective_rank(head.query_spectrum)));
      row.push_back(fmt::format("{:.1f}", effective_rank(head.key_spectrum)));
      row.push_back(fmt::format("{:.2f}", mean_to_spread(head)));
      table.add_row(std::move(row));
    }
  }
  fmt::print("{}", table.to_string());
}

// --- Codes of nib

double bits(const NibCode& code) {
  return 4.0 * code.n_nibbles() / static_cast<double>(code.mean.size());
}

double error_share(const NibCode& code) {
  return code.power > 0 ? static_cast<double>(code.error) / code.power : 0.0;
}

// Bits per element over all heads, 0 when there are no codes.
double mean_bits(const Profile& p, NibCode HeadProfile::*side) {
  double nibbles = 0.0, elements = 0.0;
  for (const HeadProfile& head : p.heads) {
    nibbles += (head.*side).n_nibbles();
    elements += static_cast<double>((head.*side).mean.size());
  }
  return elements > 0 ? 4.0 * nibbles / elements : 0.0;
}

void print_codes(const Profile& p) {
  fmt::print("\ncodecs       {}: {:.3f} bits a key element, {:.3f} a value element\n\n",
             printable(p.nib), mean_bits(p, &HeadProfile::key_nib),
             mean_bits(p, &HeadProfile::value_nib));
  Table table({"layer", "head", "K bits", "K coords", "score std", "K error %", "V bits", "V coords",
               "V error %"});
  for (size_t entry = 0; entry < p.shapes.size(); ++entry) {
    const std::span<const HeadProfile> heads = p.layer_heads(static_cast<int>(entry));
    for (size_t h = 0; h < heads.size(); ++h) {
      std::vector<std::string> row = {std::to_string(p.layer_ids[entry]), std::to_string(h)};
      for (const NibCode* code : {&heads[h].key_nib, &heads[h].value_nib}) {
        const bool is_key = code == &heads[h].key_nib;
        if (code->reach.empty()) {
          row.insert(row.end(), is_key ? 4 : 3, "-");
          continue;
        }
        row.push_back(fmt::format("{:.2f}", bits(*code)));
        row.push_back(std::to_string(code->n_coords()));
        if (is_key) row.push_back(fmt::format("{:.4f}", std::sqrt(code->error)));
        row.push_back(fmt::format("{:.2f}", 100.0 * error_share(*code)));
      }
      table.add_row(std::move(row));
    }
  }
  fmt::print("{}", table.to_string());
  fmt::print(
      "\nscore std: expected standard deviation of a score's error, in nats, weighted by how "
      "undecided the softmax is;\nerror %: of the variance that attention sees\n");
}

Json code_json(const NibCode& code) {
  if (code.reach.empty()) return nullptr;
  return {{"bits", bits(code)},
          {"nibbles", code.n_nibbles()},
          {"coordinates", code.n_coords()},
          {"error", code.error},
          {"power", code.power}};
}

void print_profile(const Profile& p) {
  fmt::print("profile      version {}, written by headq {}, {}\n", Profile::kVersion,
             printable(p.tool_version), size_text(p.payload_bytes()));
  fmt::print("model        {} ({})\n", printable(p.model_name), printable(p.model_arch));
  fmt::print("fingerprint  {}\n", printable(p.model_fingerprint));
  fmt::print("calibration  {} tokens, context {}\n", p.n_tokens, p.n_ctx);
  for (const std::string& source : p.sources) fmt::print("text         {}\n", printable(source));
  fmt::print("layers       {}, {} KV heads, {} vectors a basis\n\n", p.shapes.size(),
             p.heads.size(), p.n_basis);
  print_heads(p);
  fmt::print(
      "\nq N %: share of the query energy in the N strongest directions; rank: exp of the "
      "spectrum's entropy;\nk mean/std: length of the mean key over the keys' spread\n");
  if (!p.nib.empty()) print_codes(p);
}

Json head_json(const HeadProfile& head) {
  Json shares = Json::object();
  for (int n : kDirections) shares[std::to_string(n)] = leading_share(head.query_spectrum, n);
  return {{"query_energy_share", shares},
          {"query_effective_rank", effective_rank(head.query_spectrum)},
          {"key_effective_rank", effective_rank(head.key_spectrum)},
          {"key_mean_to_std", mean_to_spread(head)},
          {"key_nib", code_json(head.key_nib)},
          {"value_nib", code_json(head.value_nib)},
          {"query_spectrum", head.query_spectrum},
          {"key_spectrum", head.key_spectrum}};
}

Json profile_json(const Profile& p) {
  Json layers = Json::array();
  for (size_t entry = 0; entry < p.shapes.size(); ++entry) {
    Json heads = Json::array();
    for (const HeadProfile& head : p.layer_heads(static_cast<int>(entry))) {
      heads.push_back(head_json(head));
    }
    layers.push_back({{"layer", p.layer_ids[entry]},
                      {"d_k", p.shapes[entry].d_k},
                      {"d_v", p.shapes[entry].d_v},
                      {"heads", std::move(heads)}});
  }
  return {{"type", "profile"},
          {"version", Profile::kVersion},
          {"tool_version", p.tool_version},
          {"model",
           {{"name", p.model_name}, {"arch", p.model_arch}, {"fingerprint", p.model_fingerprint}}},
          {"sources", p.sources},
          {"n_tokens", p.n_tokens},
          {"n_ctx", p.n_ctx},
          {"n_basis", p.n_basis},
          {"nib", p.nib},
          {"key_bits", mean_bits(p, &HeadProfile::key_nib)},
          {"value_bits", mean_bits(p, &HeadProfile::value_nib)},
          {"payload_bytes", p.payload_bytes()},
          {"layers", std::move(layers)}};
}

// --- Models

// f16 bytes of the cache for one token, over all layers.
uint64_t dense_bytes_per_token(const ModelInfo& m) {
  uint64_t elements = 0;
  for (const LayerShape& s : m.layers) {
    elements += static_cast<uint64_t>(s.n_head_kv) * static_cast<uint64_t>(s.d_k + s.d_v);
  }
  return 2 * elements;
}

void print_model(const ModelInfo& m) {
  const std::string why = m.why_unsupported();
  fmt::print("model        {} ({})\n", printable(m.name), printable(m.arch));
  fmt::print("fingerprint  {}\n", m.fingerprint);
  fmt::print("context      {} tokens\n", m.n_ctx_train);
  if (m.n_swa != 0) fmt::print("window       {} tokens in some layers\n", m.n_swa);
  fmt::print("f16 cache    {} a token\n", size_text(dense_bytes_per_token(m)));
  fmt::print("served       {}\n\n", why.empty() ? "yes" : "no: " + why);
  Table table({"layers", "KV heads", "d_k", "d_v"});
  for (size_t first = 0; first < m.layers.size();) {  // runs of equal layers
    const LayerShape& s = m.layers[first];
    size_t last = first;
    while (last + 1 < m.layers.size() && m.layers[last + 1] == s) ++last;
    table.add_row({first == last ? std::to_string(first) : fmt::format("{}-{}", first, last),
                   std::to_string(s.n_head_kv), std::to_string(s.d_k), std::to_string(s.d_v)});
    first = last + 1;
  }
  fmt::print("{}", table.to_string());
}

Json model_json(const ModelInfo& m) {
  Json layers = Json::array();
  for (const LayerShape& s : m.layers) {
    layers.push_back({{"n_head_kv", s.n_head_kv}, {"d_k", s.d_k}, {"d_v", s.d_v}});
  }
  return {{"type", "model"},
          {"name", m.name},
          {"arch", m.arch},
          {"fingerprint", m.fingerprint},
          {"n_ctx_train", m.n_ctx_train},
          {"n_swa", m.n_swa},
          {"dense_bytes_per_token", dense_bytes_per_token(m)},
          {"why_unsupported", m.why_unsupported()},
          {"layers", std::move(layers)}};
}

// Damaged names would otherwise end the output with an exception.
void print_json(const Json& json) {
  fmt::print("{}\n", json.dump(2, ' ', false, Json::error_handler_t::replace));
}

bool is_profile(const std::string& path) {
  const MappedFile file(path);
  const GgufFile gguf = GgufFile::parse(file.bytes(), path);
  const GgufValue* type = gguf.find("general.type");
  return type != nullptr && type->as_string() == "headq-profile";
}

void run_inspect(const InspectArguments& args) {
  const bool json = args.format == "json";
  if (is_profile(args.file)) {
    const Profile profile = Profile::load(args.file);
    json ? print_json(profile_json(profile)) : print_profile(profile);
  } else {
    const ModelInfo model = ModelInfo::load(args.file);
    json ? print_json(model_json(model)) : print_model(model);
  }
}

}  // namespace

CLI::App* add_inspect_command(CLI::App& app) {
  CLI::App* const command = app.add_subcommand("inspect", "Show what a profile or a model holds");
  const auto args = std::make_shared<InspectArguments>();
  command->add_option("file", args->file, "A profile of headq calibrate, or a GGUF model")
      ->required()
      ->type_name("FILE");
  command->add_option("--format", args->format, "table or json [table]")
      ->check(CLI::IsMember({"table", "json"}))
      ->type_name("FORMAT");
  command->callback([args] { run_inspect(*args); });
  return command;
}

}  // namespace headq
