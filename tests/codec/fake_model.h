#pragma once

#include <deque>
#include <string>
#include <vector>

#include "core/gguf.h"
#include "core/temp_dir.h"
#include "headq/model_info.h"

namespace headq::testing {

// A model file with the metadata a test gives it; its weights are f32 ramps.
class FakeModel {
 public:
  explicit FakeModel(const std::string& arch = "llama") : arch_(arch) {
    out_.add_string("general.architecture", arch);
  }
  FakeModel(FakeModel&&) = default;  // a copy would write the data of the original

  FakeModel& name(const std::string& text) {
    out_.add_string("general.name", text);
    return *this;
  }
  FakeModel& u32(const std::string& key, uint32_t value) {
    out_.add_u32(arch_ + "." + key, value);
    return *this;
  }
  FakeModel& i32s(const std::string& key, std::vector<int32_t> values) {
    out_.add_i32s(arch_ + "." + key, values);
    return *this;
  }
  FakeModel& global_u32(const std::string& key, uint32_t value) {
    out_.add_u32(key, value);
    return *this;
  }
  FakeModel& tensor(const std::string& name, std::vector<uint64_t> ne, float first = 1.0f) {
    uint64_t n = 1;
    for (uint64_t size : ne) n *= size;
    std::vector<float>& data = data_.emplace_back(n);
    for (size_t i = 0; i < n; ++i) data[i] = first + static_cast<float>(i);
    out_.add_f32(name, ne, data);
    return *this;
  }
  // The usual keys: 4 layers, width 256, 8 heads, 2 KV heads.
  FakeModel& usual() {
    return u32("block_count", 4)
        .u32("embedding_length", 256)
        .u32("attention.head_count", 8)
        .u32("attention.head_count_kv", 2);
  }
  std::string write(const TempDir& dir, const std::string& file = "m.gguf") const {
    put_file(dir.file(file), out_.finish());
    return dir.file(file);
  }
  ModelInfo load() const {
    const TempDir dir;
    return ModelInfo::load(write(dir));
  }

 private:
  std::string arch_;
  GgufWriter out_;
  std::deque<std::vector<float>> data_;  // addresses stay
};

}  // namespace headq::testing
