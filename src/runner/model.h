#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headq/model_info.h"
#include "headq/spec.h"
#include "runner/logit_source.h"
#include "runner/plugin.h"

struct ggml_tensor;
struct llama_context;
struct llama_model;

namespace headq {

// Where the KV cache and attention live. Weights are on the CPU in both cases.
enum class Device {
  kPlugin,  // the plugin's device: caches as their CacheSpec says
  kCpu,     // llama.cpp's own cache, for validation and comparison
};

// A model file opened by llama.cpp (memory-mapped). Immutable; contexts of one model may live at
// the same time, and the model outlives them.
class Model {
 public:
  // Throws what ModelInfo::load() and Plugin::instance() throw, Error(kUnsupported) when the plugin
  // cannot serve this model's cache, and Error(kCorrupt) when llama.cpp does not load it.
  static Model load(const std::string& path, Device device);

  Device device() const { return device_; }
  const ModelInfo& info() const { return info_; }
  const std::string& path() const { return path_; }
  int n_ctx_train() const;
  int n_vocab() const;
  // Token that starts every text, or -1 when the model wants none.
  int32_t bos() const;

  // Throws Error(kMismatch) when the profile was made for another model, and what Profile::load()
  // throws.
  void check_profile(const std::string& path) const;

  // Tokens of text with the special tokens the model wants at the ends of a text; text that looks
  // like a special token is plain text. Throws Error(kInvalidArgument) when it is too long.
  std::vector<int32_t> tokenize(const std::string& text) const;

  llama_model* get() const { return model_.get(); }

 private:
  struct Free {
    void operator()(llama_model* model) const;
  };
  Model(llama_model* model, Device device, std::string path, ModelInfo info)
      : model_(model), device_(device), path_(std::move(path)), info_(std::move(info)) {}

  std::unique_ptr<llama_model, Free> model_;
  Device device_;
  std::string path_;
  ModelInfo info_;
};

// Sees tensors of a model's graphs while they are computed.
class TensorObserver {
 public:
  virtual ~TensorObserver() = default;
  virtual bool wants(const ggml_tensor& tensor) = 0;
  virtual void take(const ggml_tensor& tensor) = 0;  // just computed
};

// Throws Error(kInvalidArgument) when llama.cpp has no cache of the type that ggml calls by this name.
void check_cpu_cache(const std::string& name);
double cpu_cache_bits(const std::string& name);  // per element, scales included
// llama.cpp needs head sizes that are multiples of the type's block of 1 or 32 elements.
bool cpu_cache_serves(const std::string& name, const ModelInfo& info);

struct ContextOptions {
  int n_ctx = 2048;
  int n_batch = 512;    // most tokens of one decode()
  int n_ubatch = 512;   // tokens a graph computes at once, at most n_batch
  int n_outputs = 512;  // most logits rows of one decode()
  int n_threads = 1;
  CacheSpec cache = {};      // of Device::kPlugin
  std::string profile = {};  // path, or ""
  TensorObserver* tensors = nullptr;  // null, or one that outlives the context
  std::string cpu_cache = "f16";  // of Device::kCpu: ggml's name of the type of keys and values
};

// One sequence with its own KV cache. Not thread-safe; different contexts may run in turn.
class Context : public LogitSource {
 public:
  // Throws Error(kUnsupported) with the reason when the cache cannot be served, and
  // Error(kInvalidArgument) for options outside their limits.
  Context(const Model& model, const ContextOptions& options);

  void clear() override;
  std::span<const float> decode(std::span<const int32_t> tokens, int first_pos,
                                int first_output) override;

  // Forgets the positions from first_pos on. Throws Error(kUnsupported) when the cache cannot.
  void remove_from(int first_pos);

  // What the cache holds now; all zero on Device::kCpu.
  CacheStats stats() const;

 private:
  struct Free {
    void operator()(llama_context* context) const;
  };

  // Why llama.cpp or the plugin said no.
  std::string refusal() const;

  const Model& model_;
  ContextOptions options_;
  uint32_t configuration_ = 0;
  std::unique_ptr<llama_context, Free> context_;
};

}  // namespace headq
