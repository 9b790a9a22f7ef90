#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace headq {

// GGUF, the container of models and profiles: little-endian
//   "GGUF", u32 version, u64 tensors, u64 pairs, the pairs, the tensor infos, padding to the
//   alignment, the tensor data. A string is a u64 length and its bytes.

// Type of a metadata value.
enum class GgufType : uint32_t {
  kU8 = 0,
  kI8 = 1,
  kU16 = 2,
  kI16 = 3,
  kU32 = 4,
  kI32 = 5,
  kF32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kU64 = 10,
  kI64 = 11,
  kF64 = 12,
};

// The tensor types that this code makes or looks into; files may hold others.
inline constexpr uint32_t kTensorF32 = 0;
inline constexpr uint32_t kTensorI8 = 24;
inline constexpr uint32_t kTensorI32 = 26;

inline constexpr uint64_t kGgufAlignment = 32;  // without general.alignment

// A metadata value as it lies in the file. Conversions give nothing when the value has another kind
// or does not fit; no conversion trusts a length that the file does not hold.
struct GgufValue {
  GgufType type = GgufType::kU8;     // kArray for arrays
  GgufType element = GgufType::kU8;  // of arrays; equal to type otherwise
  uint64_t n = 1;                    // elements
  std::span<const uint8_t> raw;      // the elements alone

  bool is_array() const { return type == GgufType::kArray; }
  std::optional<std::string_view> as_string() const;
  std::optional<int64_t> as_int() const;                // integers of any width, and bool
  std::optional<std::vector<int64_t>> as_ints() const;  // array of integers or bools
  std::optional<std::vector<std::string>> as_strings() const;
};

struct GgufTensor {
  std::string name;
  uint32_t type = 0;
  int n_dims = 0;
  std::array<uint64_t, 4> ne = {1, 1, 1, 1};  // elements a dimension, fastest first
  std::span<const uint8_t> data;
};

// The contents of a GGUF file; spans point into the bytes it was parsed from. Everything is checked
// against the size of the file before it is used, and the memory it takes is proportional to the
// bytes that were really there.
class GgufFile {
 public:
  // bytes: the whole file; name: for messages. Reads versions 2 and 3. Throws Error: kCorrupt for
  // bytes that are not GGUF or contradict themselves, kUnsupported for a version or a tensor type
  // this code does not know.
  static GgufFile parse(std::span<const uint8_t> bytes, const std::string& name);

  uint32_t version() const { return version_; }
  uint64_t alignment() const { return alignment_; }
  // First byte behind the last tensor's data, without its padding.
  uint64_t end() const { return end_; }

  // In the order of the file; keys and names are unique.
  const std::vector<std::pair<std::string, GgufValue>>& pairs() const { return pairs_; }
  const std::vector<GgufTensor>& tensors() const { return tensors_; }

  // Null when there is none.
  const GgufValue* find(const std::string& key) const;
  const GgufTensor* find_tensor(const std::string& name) const;

 private:
  friend class GgufParser;

  uint32_t version_ = 0;
  uint64_t alignment_ = kGgufAlignment;
  uint64_t end_ = 0;
  std::vector<std::pair<std::string, GgufValue>> pairs_;
  std::vector<GgufTensor> tensors_;
  std::unordered_map<std::string, size_t> pair_index_;
  std::unordered_map<std::string, size_t> tensor_index_;
};

// Puts a GGUF file of version 3 together in memory: pairs and tensors in the order they were added,
// every tensor padded to 32 bytes with zeros, the last one too.
class GgufWriter {
 public:
  void add_string(const std::string& key, std::string_view value);
  void add_u32(const std::string& key, uint32_t value);
  void add_u64(const std::string& key, uint64_t value);
  void add_i32s(const std::string& key, std::span<const int32_t> values);
  void add_strings(const std::string& key, std::span<const std::string> values);

  // ne: 1 to 4 sizes, fastest dimension first; data has as many elements. data must live until
  // finish().
  void add_f32(const std::string& name, std::span<const uint64_t> ne, std::span<const float> data);
  void add_i8(const std::string& name, std::span<const uint64_t> ne, std::span<const int8_t> data);
  void add_i32(const std::string& name, std::span<const uint64_t> ne, std::span<const int32_t> data);

  std::vector<uint8_t> finish() const;

 private:
  struct Tensor {
    std::string name;
    std::vector<uint64_t> ne;
    uint32_t type;
    std::span<const uint8_t> data;
  };

  void add_tensor(const std::string& name, std::span<const uint64_t> ne, uint32_t type,
                  uint64_t n_elements, const void* data, size_t n_bytes);

  void begin_pair(const std::string& key, GgufType type);
  void begin_array(const std::string& key, GgufType element, uint64_t n);

  uint64_t n_pairs_ = 0;
  std::vector<uint8_t> pairs_;
  std::vector<Tensor> tensors_;
};

}  // namespace headq
