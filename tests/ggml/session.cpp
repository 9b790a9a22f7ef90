#include "ggml/session.h"

#include <fmt/format.h>
#include <stdlib.h>

#include <filesystem>
#include <mutex>
#include <stdexcept>
#include <utility>

namespace headq::testing {
namespace {

std::mutex log_mutex;
std::string log_text;

// Keeps warnings and errors; a line may come in several parts.
void append_log(ggml_log_level level, const char* text, void*) {
  static bool keeping = false;
  const std::lock_guard lock(log_mutex);
  if (level != GGML_LOG_LEVEL_CONT) {
    keeping = level == GGML_LOG_LEVEL_WARN || level == GGML_LOG_LEVEL_ERROR;
  }
  if (keeping) log_text += text;
}

// llama.cpp is initialised once per process and logs into log_text.
void init_llama() {
  static const bool done = [] {
    llama_log_set(append_log, nullptr);
    llama_backend_init();
    return true;
  }();
  (void)done;
}

class ScratchDir {
 public:
  ScratchDir() {
    std::string name = (std::filesystem::temp_directory_path() / "headq-test-XXXXXX").string();
    if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("cannot create " + name);
    path_ = name;
  }
  ~ScratchDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

llama_context* open_context(const Model& model, const SessionConfig& config) {
  if (model.backend() == Backend::kHeadq && config.configure) {
    const headq_options options = {.kv = config.kv.c_str(),
                                   .kv_layer = config.kv_layer.c_str(),
                                   .profile = config.profile.c_str(),
                                   .window = config.window,
                                   .sinks = config.sinks};
    const std::string error = Plugin::get().configure(options);
    if (!error.empty()) throw std::runtime_error(error);
  }
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(config.n_ctx);
  params.n_batch = static_cast<uint32_t>(config.n_batch);
  params.n_ubatch = static_cast<uint32_t>(config.n_ubatch);
  params.n_seq_max = static_cast<uint32_t>(config.n_seq_max);
  params.n_threads = config.n_threads;
  params.n_threads_batch = config.n_threads;
  params.flash_attn_type =
      config.flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
  params.type_k = config.type_kv;
  params.type_v = config.type_kv;
  params.kv_unified = config.unified;
  params.swa_full = config.swa_full;
  params.no_perf = true;
  params.cb_eval = config.on_tensor;
  params.cb_eval_user_data = config.on_tensor_data;
  return llama_init_from_model(model.raw(), params);
}

}  // namespace

const std::string& scratch_dir() {
  static const ScratchDir dir;
  return dir.path();
}

std::string tiny_model_path(const TinyModelConfig& config) {
  return write_tiny_model(config, scratch_dir());
}

std::string take_log() {
  const std::lock_guard lock(log_mutex);
  return std::exchange(log_text, {});
}

Plugin& Plugin::get() {
  static Plugin plugin;
  return plugin;
}

Plugin::Plugin() {
  init_llama();
  registry_ = ggml_backend_load(HEADQ_TEST_PLUGIN);
  if (registry_ == nullptr) {
    throw std::runtime_error(fmt::format("{} does not load\n{}", HEADQ_TEST_PLUGIN, take_log()));
  }
  device_ = ggml_backend_dev_by_name("HEADQ0");
  if (device_ == nullptr) throw std::runtime_error("the plugin has no device HEADQ0");
}

std::string Plugin::configure(const headq_options& options) const {
  char error[1024] = "";
  const int status = function<headq_configure_t>("headq_configure")(&options, error, sizeof(error));
  if (status == 0) return "";
  return error[0] != '\0' ? error : "headq_configure failed without a message";
}

std::string Plugin::last_error() const {
  return function<headq_last_error_t>("headq_last_error")();
}

uint32_t Plugin::configuration() const {
  return function<headq_configuration_t>("headq_configuration")();
}

headq_stats Plugin::stats(uint32_t configuration) const {
  headq_stats stats = {};
  function<headq_get_stats_t>("headq_get_stats")(configuration, &stats);
  return stats;
}

Model::Model(const std::string& path, Backend backend) : backend_(backend) {
  init_llama();
  ggml_backend_dev_t devices[2] = {nullptr, nullptr};
  if (backend == Backend::kHeadq) devices[0] = Plugin::get().device();
  llama_model_params params = llama_model_default_params();
  params.devices = devices;
  params.n_gpu_layers = backend == Backend::kHeadq ? 99 : 0;
  model_.reset(llama_model_load_from_file(path.c_str(), params));
  if (model_ == nullptr) throw std::runtime_error(fmt::format("{}: {}", path, take_log()));
}

std::vector<Row> make_rows(std::span<const int32_t> tokens, int pos0, int seq) {
  std::vector<Row> rows;
  for (int32_t token : tokens) {
    rows.push_back({token, pos0 + static_cast<int>(rows.size()), seq});
  }
  return rows;
}

Logits Logits::rows(int begin, int end) const {
  Logits out{n_vocab, {}};
  out.data.assign(data.begin() + static_cast<ptrdiff_t>(begin) * n_vocab,
                  data.begin() + static_cast<ptrdiff_t>(end) * n_vocab);
  return out;
}

void Logits::append(const Logits& other) {
  if (other.data.empty()) return;
  n_vocab = other.n_vocab;
  data.insert(data.end(), other.data.begin(), other.data.end());
}

Session::Session(llama_context* context, const Model& model)
    : n_vocab_(model.n_vocab()), context_(context) {
  if (model.backend() == Backend::kHeadq) configuration_ = Plugin::get().configuration();
}

Session::Session(const Model& model, const SessionConfig& config)
    : Session(open_context(model, config), model) {
  if (context_ == nullptr) throw std::runtime_error("context refused: " + take_log());
}

std::unique_ptr<Session> Session::try_open(const Model& model, const SessionConfig& config) {
  llama_context* context = open_context(model, config);
  if (context == nullptr) return nullptr;
  return std::unique_ptr<Session>(new Session(context, model));
}

Logits Session::decode(std::span<const Row> rows, int first_output) {
  if (rows.size() > llama_n_batch(context_.get())) {  // llama.cpp would abort
    throw std::invalid_argument(
        fmt::format("{} rows in a batch of {}", rows.size(), llama_n_batch(context_.get())));
  }
  llama_batch batch = llama_batch_init(static_cast<int>(rows.size()), 0, 1);
  for (const Row& row : rows) {
    const int i = batch.n_tokens++;
    batch.token[i] = row.token;
    batch.pos[i] = row.pos;
    batch.n_seq_id[i] = 1;
    batch.seq_id[i][0] = row.seq;
    batch.logits[i] = i >= first_output;
  }
  const int status = llama_decode(context_.get(), batch);
  llama_batch_free(batch);
  if (status != 0) {
    throw std::runtime_error(fmt::format("llama_decode returned {}: {}", status, take_log()));
  }
  Logits out{n_vocab_, {}};
  for (int i = first_output; i < static_cast<int>(rows.size()); ++i) {
    const float* logits = llama_get_logits_ith(context_.get(), i);
    out.data.insert(out.data.end(), logits, logits + n_vocab_);
  }
  return out;
}

Logits Session::feed(std::span<const int32_t> tokens, int pos0, int seq) {
  return decode(make_rows(tokens, pos0, seq), static_cast<int>(tokens.size()) - 1);
}

Logits Session::decode_one_by_one(std::span<const int32_t> tokens, int pos0, int seq) {
  Logits out;
  for (const Row& row : make_rows(tokens, pos0, seq)) out.append(decode(std::span(&row, 1)));
  return out;
}

std::vector<uint8_t> Session::save_all() const {
  std::vector<uint8_t> state(llama_state_get_size(context_.get()));
  state.resize(llama_state_get_data(context_.get(), state.data(), state.size()));
  return state;
}

std::vector<uint8_t> Session::save_seq(int seq) const {
  std::vector<uint8_t> state(llama_state_seq_get_size(context_.get(), seq));
  state.resize(llama_state_seq_get_data(context_.get(), state.data(), state.size(), seq));
  return state;
}

bool Session::load_all(std::span<const uint8_t> state) {
  return llama_state_set_data(context_.get(), state.data(), state.size()) == state.size();
}

bool Session::load_seq(std::span<const uint8_t> state, int seq) {
  return llama_state_seq_set_data(context_.get(), state.data(), state.size(), seq) == state.size();
}

Logits run(const Model& model, const SessionConfig& config, std::span<const int32_t> tokens,
           int n_prompt) {
  Session session(model, config);
  Logits out = session.decode(tokens.first(static_cast<size_t>(n_prompt)));
  out.append(session.decode_one_by_one(tokens.subspan(static_cast<size_t>(n_prompt)), n_prompt));
  return out;
}

}  // namespace headq::testing
