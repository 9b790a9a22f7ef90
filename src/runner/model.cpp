#include "runner/model.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <llama.h>

#include <algorithm>
#include <filesystem>
#include <limits>
#include <numeric>
#include <utility>

#include "headq/error.h"
#include "runner/log.h"

namespace headq {
namespace {

// Builds of ggml with loadable backends keep the CPU backend in a library beside libggml.so.
void load_cpu_backend() {
  if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) != nullptr) return;
  Dl_info info = {};
  if (dladdr(reinterpret_cast<void*>(&ggml_backend_load_all), &info) != 0) {
    const auto folder = std::filesystem::path(info.dli_fname).parent_path();
    ggml_backend_load_all_from_path(folder.c_str());
  }
  if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr) {
    throw Error(ErrorCode::kUnsupported, "llama.cpp has no CPU backend in its library folder");
  }
}

void start_llama() {
  static const bool started = [] {
    capture_llama_log();
    load_cpu_backend();
    llama_backend_init();
    return true;
  }();
  static_cast<void>(started);
}

// The arrays behind a llama_batch of one sequence.
class Batch {
 public:
  Batch(std::span<const int32_t> tokens, int first_pos, int first_output)
      : tokens_(tokens.begin(), tokens.end()),
        positions_(tokens.size()),
        n_sequences_(tokens.size(), 1),
        sequences_(tokens.size(), &sequence_),
        outputs_(tokens.size()) {
    std::iota(positions_.begin(), positions_.end(), first_pos);
    for (size_t i = 0; i < tokens.size(); ++i) outputs_[i] = positions_[i] >= first_output;
  }
  Batch(const Batch&) = delete;
  Batch& operator=(const Batch&) = delete;

  int n_rows() const { return std::accumulate(outputs_.begin(), outputs_.end(), 0); }

  llama_batch view() {
    return {.n_tokens = static_cast<int32_t>(tokens_.size()),
            .token = tokens_.data(),
            .embd = nullptr,
            .pos = positions_.data(),
            .n_seq_id = n_sequences_.data(),
            .seq_id = sequences_.data(),
            .logits = outputs_.data()};
  }

 private:
  llama_seq_id sequence_ = 0;
  std::vector<llama_token> tokens_;
  std::vector<llama_pos> positions_;
  std::vector<int32_t> n_sequences_;
  std::vector<llama_seq_id*> sequences_;
  std::vector<int8_t> outputs_;
};

// The type that ggml calls by this name and that a cache can have.
ggml_type cache_type(const std::string& name) {
  std::string known;
  for (const ggml_type type : {GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0,
                               GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_IQ4_NL, GGML_TYPE_Q5_0,
                               GGML_TYPE_Q5_1}) {
    if (name == ggml_type_name(type)) return type;
    known += (known.empty() ? "" : ", ") + std::string(ggml_type_name(type));
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("llama.cpp has no cache of type '{}'; there are {}", name, known));
}

}  // namespace

double cpu_cache_bits(const std::string& name) {
  const ggml_type type = cache_type(name);
  return 8.0 * static_cast<double>(ggml_type_size(type)) /
         static_cast<double>(ggml_blck_size(type));
}

bool cpu_cache_serves(const std::string& name, const ModelInfo& info) {
  const int64_t block = ggml_blck_size(cache_type(name));
  return std::all_of(info.layers.begin(), info.layers.end(), [&](const LayerShape& shape) {
    return shape.d_k % block == 0 && shape.d_v % block == 0;
  });
}

void Model::Free::operator()(llama_model* model) const { llama_model_free(model); }

Model Model::load(const std::string& path, Device device) {
  ModelInfo info = ModelInfo::load(path);
  const std::string why = device == Device::kPlugin ? info.why_unsupported() : std::string();
  if (!why.empty()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot serve model '{}': {}", path, why));
  }
  start_llama();
  // An explicit device list keeps every other accelerator out of the run.
  ggml_backend_dev_t devices[] = {nullptr, nullptr};
  if (device == Device::kPlugin) devices[0] = Plugin::instance().device();
  llama_model_params params = llama_model_default_params();
  params.devices = devices;
  params.n_gpu_layers = device == Device::kPlugin ? 999 : 0;
  params.load_mode = LLAMA_LOAD_MODE_MMAP;
  take_llama_error();
  llama_model* model = llama_model_load_from_file(path.c_str(), params);
  if (model == nullptr) {
    throw Error(ErrorCode::kCorrupt,
                fmt::format("llama.cpp does not load model '{}': {}", path, take_llama_error()));
  }
  return Model(model, device, path, std::move(info));
}

int Model::n_ctx_train() const { return llama_model_n_ctx_train(get()); }

int Model::n_vocab() const { return llama_vocab_n_tokens(llama_model_get_vocab(get())); }

int32_t Model::bos() const {
  const llama_vocab* vocab = llama_model_get_vocab(get());
  return llama_vocab_get_add_bos(vocab) ? llama_vocab_bos(vocab) : -1;
}

void Model::check_profile(const std::string& path) const {
  const std::string why = info_.why_mismatch(Profile::load(path));
  if (!why.empty()) throw Error(ErrorCode::kMismatch, fmt::format("profile '{}': {}", path, why));
}

std::vector<int32_t> Model::tokenize(const std::string& text) const {
  constexpr size_t kMaxText = std::numeric_limits<int32_t>::max() - 2;
  if (text.size() > kMaxText) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a text of {} bytes is more than the {} that can be tokenised at once",
                            text.size(), kMaxText));
  }
  const llama_vocab* vocab = llama_model_get_vocab(get());
  // No tokenizer makes more tokens than bytes, but for the special ones at the ends.
  std::vector<int32_t> tokens(text.size() + 2);
  const auto call = [&] {
    return llama_tokenize(vocab, text.data(), static_cast<int32_t>(text.size()), tokens.data(),
                          static_cast<int32_t>(tokens.size()), /*add_special=*/true,
                          /*parse_special=*/false);
  };
  int32_t n = call();
  if (n < 0) {
    tokens.resize(static_cast<size_t>(-static_cast<int64_t>(n)));
    n = call();
  }
  if (n < 0) throw Error(ErrorCode::kInvalidArgument, "the text does not tokenise");
  tokens.resize(static_cast<size_t>(n));
  return tokens;
}

namespace {

// False when the observer failed: the graph is not computed further.
bool observe_tensor(ggml_tensor* tensor, bool ask, void* observer) {
  auto* own = static_cast<TensorObserver*>(observer);
  try {
    if (!own->wants(*tensor)) return !ask;
    if (!ask) own->take(*tensor);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

}  // namespace

void check_cpu_cache(const std::string& name) { cache_type(name); }

void Context::Free::operator()(llama_context* context) const { llama_free(context); }

Context::Context(const Model& model, const ContextOptions& options)
    : model_(model), options_(options) {
  if (model.device() == Device::kPlugin) {
    configuration_ = Plugin::instance().configure(options.cache, options.profile);
  }
  llama_context_params params = llama_context_default_params();
  params.n_ctx = static_cast<uint32_t>(options.n_ctx);
  params.n_batch = static_cast<uint32_t>(options.n_batch);
  params.n_ubatch = static_cast<uint32_t>(options.n_ubatch);
  params.n_outputs_max = static_cast<uint32_t>(options.n_outputs);
  params.n_outputs_max_per_seq = params.n_outputs_max;
  params.n_threads = options.n_threads;
  params.n_threads_batch = options.n_threads;
  params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
  params.type_k = params.type_v =
      model.device() == Device::kCpu ? cache_type(options.cpu_cache) : GGML_TYPE_F16;
  params.swa_full = false;  // as llama.cpp's programs do: window layers keep their window only
  params.no_perf = true;
  if (options.tensors != nullptr) {
    params.cb_eval = observe_tensor;
    params.cb_eval_user_data = options.tensors;
  }
  take_llama_error();
  context_.reset(llama_init_from_model(model.get(), params));
  if (context_ == nullptr) {
    throw Error(ErrorCode::kUnsupported, fmt::format("no context for this model: {}", refusal()));
  }
}

void Context::clear() { llama_memory_clear(llama_get_memory(context_.get()), /*data=*/true); }

void Context::remove_from(int first_pos) {
  if (!llama_memory_seq_rm(llama_get_memory(context_.get()), 0, first_pos, -1)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("this cache cannot forget the positions from {} on", first_pos));
  }
}

std::span<const float> Context::decode(std::span<const int32_t> tokens, int first_pos,
                                       int first_output) {
  const int n = static_cast<int>(tokens.size());
  if (n < 1 || n > options_.n_batch) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("a batch of {} tokens is not in 1..{}", n, options_.n_batch));
  }
  Batch batch(tokens, first_pos, first_output);
  if (batch.n_rows() > options_.n_outputs) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} rows of logits are more than the {} of this context",
                            batch.n_rows(), options_.n_outputs));
  }
  take_llama_error();
  const int status = llama_decode(context_.get(), batch.view());
  if (status != 0) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("decoding positions {} to {} failed ({}): {}", first_pos,
                            first_pos + n - 1, status, refusal()));
  }
  llama_synchronize(context_.get());
  if (batch.n_rows() == 0) return {};
  return {llama_get_logits(context_.get()),
          static_cast<size_t>(batch.n_rows()) * static_cast<size_t>(model_.n_vocab())};
}

std::string Context::refusal() const {
  const std::string why =
      model_.device() == Device::kPlugin ? Plugin::instance().last_error() : std::string();
  return why.empty() ? take_llama_error() : why;
}

CacheStats Context::stats() const {
  if (model_.device() != Device::kPlugin) return {};
  return Plugin::instance().stats(configuration_);
}

}  // namespace headq
