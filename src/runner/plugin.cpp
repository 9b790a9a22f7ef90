#include "runner/plugin.h"

#include <fmt/format.h>
#include <ggml-backend.h>

#include <filesystem>
#include <utility>

#include "core/env.h"
#include "core/isa.h"
#include "headq/error.h"
#include "runner/log.h"

namespace headq {
namespace {

double bits(uint64_t bytes, uint64_t elements) {
  return elements == 0 ? 0.0 : 8.0 * static_cast<double>(bytes) / static_cast<double>(elements);
}

}  // namespace

double CacheStats::true_bits() const { return bits(cache_bytes(), n_elements); }
double CacheStats::packed_bits() const { return bits(packed_bytes, packed_elements); }

std::string find_plugin() {
  namespace fs = std::filesystem;
  fs::path path = Environment::read().plugin;
  if (path.empty()) {
    const fs::path program = fs::read_symlink("/proc/self/exe");
    path = program.parent_path().parent_path() / "lib" / "libggml-headq.so";
  }
  std::error_code ignored;
  if (!fs::is_regular_file(path, ignored)) {
    throw Error(ErrorCode::kIo, fmt::format("the plugin '{}' is not there; HEADQ_PLUGIN can name "
                                            "another place",
                                            path.string()));
  }
  return fs::absolute(path).string();
}

Plugin& Plugin::instance() {
  static Plugin plugin;
  return plugin;
}

Plugin::Plugin() {
  capture_llama_log();
  select_isa(Environment::read().isa);  // here the reason for a no is not lost
  // GGML_BACKEND_PATH may have brought it in already; a second copy would have its own state.
  reg_ = ggml_backend_reg_by_name("HEADQ");
  if (reg_ == nullptr) {
    path_ = find_plugin();
    take_llama_error();
    reg_ = ggml_backend_load(path_.c_str());
    if (reg_ == nullptr) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("the plugin '{}' does not load: {}", path_, take_llama_error()));
    }
  }
  if (ggml_backend_reg_dev_count(reg_) == 0) {
    throw Error(ErrorCode::kUnsupported, fmt::format("the plugin '{}' offers no device", path_));
  }
  device_ = ggml_backend_reg_dev_get(reg_, 0);
  configure_ = function<headq_configure_t>("headq_configure");
  configuration_ = function<headq_configuration_t>("headq_configuration");
  last_error_ = function<headq_last_error_t>("headq_last_error");
  get_stats_ = function<headq_get_stats_t>("headq_get_stats");
  set_observer_ = function<headq_set_observer_t>("headq_set_observer");
}

template <typename Fn>
Fn Plugin::function(const char* name) const {
  void* address = ggml_backend_reg_get_proc_address(reg_, name);
  if (address == nullptr) {
    throw Error(
        ErrorCode::kMismatch,
        fmt::format("the plugin '{}' has no function {}; it is of another version", path_, name));
  }
  return reinterpret_cast<Fn>(address);
}

uint32_t Plugin::configure(const CacheSpec& spec, const std::string& profile) {
  const std::string kv = spec.kv.to_string();
  const std::string kv_layer = layers_to_string(spec);
  const headq_options options = {.kv = kv.c_str(),
                                 .kv_layer = kv_layer.c_str(),
                                 .profile = profile.c_str(),
                                 .window = spec.window,
                                 .sinks = spec.sinks};
  char error[1024] = "";
  if (configure_(&options, error, sizeof error) != 0) throw Error(ErrorCode::kUnsupported, error);
  return configuration_();
}

std::string Plugin::last_error() const { return last_error_(); }

CacheStats Plugin::stats(uint32_t configuration) const {
  headq_stats s = {};
  get_stats_(configuration, &s);
  return {.n_tokens = s.n_tokens,
          .n_elements = s.n_elements,
          .packed_elements = s.packed_elements,
          .packed_bytes = s.packed_bytes,
          .dense_bytes = s.dense_bytes,
          .meta_bytes = s.meta_bytes,
          .profile_bytes = s.profile_bytes};
}

void Plugin::set_observer(Observer observer) {
  set_observer_(nullptr, nullptr);
  observer_ = std::move(observer);
  observer_error_ = nullptr;
  if (!observer_) return;
  // Exceptions must not cross the C interface.
  set_observer_(
      [](const headq_observation* observation, void* user) {
        Plugin& self = *static_cast<Plugin*>(user);
        if (self.observer_error_) return;
        try {
          self.observer_(*observation);
        } catch (...) {
          self.observer_error_ = std::current_exception();
        }
      },
      this);
}

void Plugin::rethrow_observer_error() {
  if (observer_error_) std::rethrow_exception(std::exchange(observer_error_, nullptr));
}

std::string layers_to_string(const CacheSpec& spec) {
  std::string text;
  for (const auto& [layer, kv] : spec.layers) {
    text += fmt::format("{}{}:{}", text.empty() ? "" : ",", layer, kv.to_string());
  }
  return text;
}

}  // namespace headq
