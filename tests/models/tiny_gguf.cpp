#include "models/tiny_gguf.h"

#include <fmt/format.h>
#include <ggml.h>
#include <gguf.h>
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <stdexcept>

namespace headq::testing {

TinyGguf::TinyGguf(std::string arch) : arch_(std::move(arch)), gguf_(gguf_init_empty()) {
  gguf_set_val_str(gguf_, "general.architecture", arch_.c_str());
}

TinyGguf::~TinyGguf() { gguf_free(gguf_); }

void TinyGguf::set_u32(const std::string& key, int64_t value) {
  gguf_set_val_u32(gguf_, (arch_ + "." + key).c_str(), static_cast<uint32_t>(value));
}

void TinyGguf::set_f32(const std::string& key, double value) {
  gguf_set_val_f32(gguf_, (arch_ + "." + key).c_str(), static_cast<float>(value));
}

void TinyGguf::set_flag(const std::string& key, bool value) {
  gguf_set_val_bool(gguf_, (arch_ + "." + key).c_str(), value);
}

void TinyGguf::set_flags(const std::string& key, const std::vector<bool>& values) {
  const std::vector<int8_t> bytes(values.begin(), values.end());
  gguf_set_arr_data(gguf_, (arch_ + "." + key).c_str(), GGUF_TYPE_BOOL, bytes.data(), bytes.size());
}

void TinyGguf::add(const std::string& name, std::vector<int64_t> ne, std::vector<float> data) {
  int64_t n = 1;
  for (int64_t x : ne) n *= x;
  if (n != static_cast<int64_t>(data.size())) {
    throw std::invalid_argument(fmt::format("{}: {} values for {} elements", name, data.size(), n));
  }
  tensors_.push_back({name, std::move(ne), std::move(data)});
}

void TinyGguf::write(const std::string& path) {
  const ggml_init_params params = {.mem_size = (tensors_.size() + 1) * ggml_tensor_overhead(),
                                   .mem_buffer = nullptr,
                                   .no_alloc = true};
  const std::unique_ptr<ggml_context, decltype(&ggml_free)> ctx(ggml_init(params), ggml_free);
  for (Tensor& t : tensors_) {
    ggml_tensor* tensor =
        ggml_new_tensor(ctx.get(), GGML_TYPE_F32, static_cast<int>(t.ne.size()), t.ne.data());
    ggml_set_name(tensor, t.name.c_str());
    tensor->data = t.data.data();
    gguf_add_tensor(gguf_, tensor);
  }
  const std::string temporary = fmt::format("{}.{}.tmp", path, getpid());
  if (!gguf_write_to_file(gguf_, temporary.c_str(), false)) {
    std::filesystem::remove(temporary);
    throw std::runtime_error("cannot write " + temporary);
  }
  std::filesystem::rename(temporary, path);
}

}  // namespace headq::testing
