#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

struct gguf_context;

namespace headq::testing {

// Collects metadata and f32 tensors and writes them as one GGUF file. Keys of the architecture are
// given without their "<arch>." prefix.
class TinyGguf {
 public:
  explicit TinyGguf(std::string arch);
  ~TinyGguf();
  TinyGguf(const TinyGguf&) = delete;
  TinyGguf& operator=(const TinyGguf&) = delete;

  gguf_context* raw() { return gguf_; }
  void set_u32(const std::string& key, int64_t value);
  void set_f32(const std::string& key, double value);
  void set_flag(const std::string& key, bool value);
  void set_flags(const std::string& key, const std::vector<bool>& values);

  // ne as ggml has it: fastest dimension first.
  void add(const std::string& name, std::vector<int64_t> ne, std::vector<float> data);

  // Writes to a temporary name and renames. Throws std::runtime_error.
  void write(const std::string& path);

 private:
  struct Tensor {
    std::string name;
    std::vector<int64_t> ne;
    std::vector<float> data;
  };
  std::string arch_;
  gguf_context* gguf_;
  std::vector<Tensor> tensors_;
};

}  // namespace headq::testing
