#pragma once

// Real models in the real libllama, on the plain CPU backend or on the plugin, with RAII.

#include <llama.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ggml/plugin_api.h"
#include "models/tiny_models.h"

namespace headq::testing {

// A directory of this process, removed at exit.
const std::string& scratch_dir();

// The file of a tiny model; written once per process and config.
std::string tiny_model_path(const TinyModelConfig& config);

// Warnings and errors that libllama and ggml logged since the last call (or start).
std::string take_log();

// The plugin, loaded at first use. Throws std::runtime_error when it does not load.
class Plugin {
 public:
  static Plugin& get();

  ggml_backend_dev_t device() const { return device_; }
  ggml_backend_reg_t registry() const { return registry_; }

  // Returns "" or the plugin's error line.
  std::string configure(const headq_options& options) const;
  std::string last_error() const;
  uint32_t configuration() const;
  headq_stats stats(uint32_t configuration) const;

  template <typename Function>
  Function function(const char* name) const {
    return reinterpret_cast<Function>(ggml_backend_reg_get_proc_address(registry_, name));
  }

 private:
  Plugin();
  ggml_backend_reg_t registry_ = nullptr;
  ggml_backend_dev_t device_ = nullptr;
};

enum class Backend { kCpu, kHeadq };

class Model {
 public:
  // Throws std::runtime_error with the log when the model does not load.
  Model(const std::string& path, Backend backend);
  Model(const TinyModelConfig& config, Backend backend) : Model(tiny_model_path(config), backend) {}

  llama_model* raw() const { return model_.get(); }
  Backend backend() const { return backend_; }
  int n_vocab() const { return llama_vocab_n_tokens(llama_model_get_vocab(model_.get())); }

 private:
  struct Free {
    void operator()(llama_model* m) const { llama_model_free(m); }
  };
  Backend backend_;
  std::unique_ptr<llama_model, Free> model_;
};

struct SessionConfig {
  // Plugin only, like the next five: set the policy first, or take what was set last.
  bool configure = true;
  std::string kv = "dense/dense";
  std::string kv_layer = "";
  std::string profile = "";
  int window = 32;
  int sinks = 4;

  int n_ctx = 512;  // cells; llama.cpp rounds up to 256
  int n_batch = 4096;
  int n_ubatch = 512;
  int n_seq_max = 1;
  bool unified = true;    // one stream for all sequences
  bool swa_full = false;  // window caches as large as the full one
  int n_threads = 1;      // the models are too small to gain from more
  ggml_type type_kv = GGML_TYPE_F16;
  bool flash_attn = true;
  ggml_backend_sched_eval_callback on_tensor = nullptr;
  void* on_tensor_data = nullptr;
};

// One row of a batch.
struct Row {
  llama_token token;
  llama_pos pos;
  llama_seq_id seq = 0;
};

// tokens at positions pos0, pos0 + 1, ... of seq.
std::vector<Row> make_rows(std::span<const int32_t> tokens, int pos0 = 0, int seq = 0);

// Logits of consecutive rows, [n_rows][n_vocab].
struct Logits {
  int n_vocab = 0;
  std::vector<float> data;

  int n_rows() const { return n_vocab == 0 ? 0 : static_cast<int>(data.size()) / n_vocab; }
  std::span<const float> row(int i) const {
    return {data.data() + static_cast<size_t>(i) * n_vocab, static_cast<size_t>(n_vocab)};
  }
  Logits rows(int begin, int end) const;
  void append(const Logits& other);
};

// A context. Not copyable; the model must outlive it.
class Session {
 public:
  // Throws std::runtime_error with the log when the context is refused.
  Session(const Model& model, const SessionConfig& config);
  // Null when llama.cpp refuses the context.
  static std::unique_ptr<Session> try_open(const Model& model, const SessionConfig& config);

  llama_context* raw() const { return context_.get(); }
  llama_memory_t memory() const { return llama_get_memory(context_.get()); }

  // One llama_decode call; logits of every row. Throws std::runtime_error when it fails.
  Logits decode(std::span<const Row> rows) { return decode(rows, 0); }
  Logits decode(std::span<const int32_t> tokens, int pos0 = 0, int seq = 0) {
    return decode(make_rows(tokens, pos0, seq));
  }
  // The same, but logits of the last row only.
  Logits feed(std::span<const int32_t> tokens, int pos0 = 0, int seq = 0);
  // One llama_decode call per token.
  Logits decode_one_by_one(std::span<const int32_t> tokens, int pos0 = 0, int seq = 0);

  std::vector<uint8_t> save_all() const;
  std::vector<uint8_t> save_seq(int seq) const;
  bool load_all(std::span<const uint8_t> state);
  bool load_seq(std::span<const uint8_t> state, int seq);

  // Of this context's caches (plugin only).
  headq_stats stats() const { return Plugin::get().stats(configuration_); }

 private:
  struct Free {
    void operator()(llama_context* c) const { llama_free(c); }
  };
  Session(llama_context* context, const Model& model);
  Logits decode(std::span<const Row> rows, int first_output);
  int n_vocab_;
  uint32_t configuration_ = 0;
  std::unique_ptr<llama_context, Free> context_;
};

// Decodes tokens[0, n_prompt) in one call and the rest one by one, on a fresh context.
Logits run(const Model& model, const SessionConfig& config, std::span<const int32_t> tokens,
           int n_prompt);

}  // namespace headq::testing
