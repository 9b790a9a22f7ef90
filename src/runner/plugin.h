#pragma once

#include <cstdint>
#include <exception>
#include <functional>
#include <string>

#include "ggml/plugin_api.h"
#include "headq/spec.h"

struct ggml_backend_device;
struct ggml_backend_reg;

namespace headq {

// What a context's cache holds; bytes are real storage.
struct CacheStats {
  uint64_t n_tokens = 0;         // cells that hold a row
  uint64_t n_elements = 0;       // key and value elements those cells stand for, over all layers
  uint64_t packed_elements = 0;  // the part of them in packed blocks
  uint64_t packed_bytes = 0;
  uint64_t dense_bytes = 0;  // window, sinks and open blocks
  uint64_t meta_bytes = 0;
  uint64_t profile_bytes = 0;  // bases, means and tables, once a process

  uint64_t cache_bytes() const { return packed_bytes + dense_bytes + meta_bytes; }
  // Every byte the cache holds, per element, in bits; 0 when it is empty.
  double true_bits() const;
  // Packed blocks alone; 0 when there are none.
  double packed_bits() const;
};

// The plugin that programs load: the file HEADQ_PLUGIN names, else ../lib/libggml-headq.so beside
// the folder of this program. Absolute. Throws Error(kIo) when it is not there.
std::string find_plugin();

// libggml-headq.so in this process. Loaded once, never unloaded: caches may outlive every handle.
class Plugin {
 public:
  using Observer = std::function<void(const headq_observation&)>;

  // Loads it on the first call: the file HEADQ_PLUGIN names, else lib/libggml-headq.so beside the
  // folder of the running program. Throws Error(kIo) when it is not there, Error(kUnsupported)
  // when it does not load, and what select_isa() throws for HEADQ_ISA.
  static Plugin& instance();

  ggml_backend_device* device() const { return device_; }

  // Sets the policy of caches created from now on; profile is a path or "". Returns the number that
  // stats() wants. Throws Error(kUnsupported) with the plugin's line.
  uint32_t configure(const CacheSpec& spec, const std::string& profile);

  // Why the last buffer, tensor or graph was refused; "" when nothing was.
  std::string last_error() const;

  CacheStats stats(uint32_t configuration) const;

  // Calls observer once for each attention op from now on; an empty function removes it. What the
  // observer throws is kept and thrown by rethrow_observer_error().
  void set_observer(Observer observer);
  void rethrow_observer_error();

 private:
  Plugin();

  template <typename Fn>
  Fn function(const char* name) const;

  std::string path_ = "HEADQ";  // what messages call it
  ggml_backend_reg* reg_ = nullptr;
  ggml_backend_device* device_ = nullptr;
  headq_configure_t configure_ = nullptr;
  headq_configuration_t configuration_ = nullptr;
  headq_last_error_t last_error_ = nullptr;
  headq_get_stats_t get_stats_ = nullptr;
  headq_set_observer_t set_observer_ = nullptr;
  Observer observer_;
  std::exception_ptr observer_error_;
};

// Overrides of a cache spec as "L:K/V,L:K/V"; "" when there are none.
std::string layers_to_string(const CacheSpec& spec);

}  // namespace headq
