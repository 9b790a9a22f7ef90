#include "core/gguf.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <utility>

#include "headq/error.h"

namespace headq {

static_assert(std::endian::native == std::endian::little, "GGUF is read as it lies in memory");

namespace {

constexpr char kMagic[] = {'G', 'G', 'U', 'F'};
constexpr uint32_t kWriteVersion = 3;
constexpr uint32_t kMinVersion = 2;  // version 1 had 32-bit lengths
constexpr uint32_t kMaxVersion = 3;
constexpr uint32_t kMaxDims = 4;
constexpr uint64_t kMaxAlignment = 1u << 20;

// Bytes of one value; 0 for strings and arrays, whose size is their own.
constexpr size_t value_bytes(GgufType type) {
  switch (type) {
    case GgufType::kU8:
    case GgufType::kI8:
    case GgufType::kBool:
      return 1;
    case GgufType::kU16:
    case GgufType::kI16:
      return 2;
    case GgufType::kU32:
    case GgufType::kI32:
    case GgufType::kF32:
      return 4;
    case GgufType::kU64:
    case GgufType::kI64:
    case GgufType::kF64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

// How a tensor type packs a row: `block` elements in `bytes` bytes.
struct Packing {
  uint32_t block;
  uint32_t bytes;
};

// By the number the file has for a type; {0, 0} for numbers that were retired.
constexpr Packing kPackings[] = {
    {1, 4},    {1, 2},     {32, 18},   {32, 20},   {0, 0},     {0, 0},      // F32 F16 Q4_0 Q4_1
    {32, 22},  {32, 24},   {32, 34},   {32, 36},                            // Q5_0 Q5_1 Q8_0 Q8_1
    {256, 84}, {256, 110}, {256, 144}, {256, 176}, {256, 210}, {256, 292},  // Q2_K .. Q6_K Q8_K
    {256, 66}, {256, 74},  {256, 98},  {256, 50},           // IQ2_XXS IQ2_XS IQ3_XXS IQ1_S
    {32, 18},  {256, 110}, {256, 82},  {256, 136},          // IQ4_NL IQ3_S IQ2_S IQ4_XS
    {1, 1},    {1, 2},     {1, 4},     {1, 8},     {1, 8},  // I8 I16 I32 I64 F64
    {256, 56}, {1, 2},     {0, 0},     {0, 0},     {0, 0},  // IQ1_M BF16
    {256, 54}, {256, 66},  {0, 0},     {0, 0},     {0, 0},  // TQ1_0 TQ2_0
    {32, 17},  {64, 36},   {128, 18},  {64, 18},            // MXFP4 NVFP4 Q1_0 Q2_0
};

template <typename T>
T load(const uint8_t* p) {
  T value;
  std::memcpy(&value, p, sizeof value);
  return value;
}

// One integer or bool at p; nothing for other types and for values above the range of int64_t.
std::optional<int64_t> load_int(GgufType type, const uint8_t* p) {
  switch (type) {
    case GgufType::kU8:
      return *p;
    case GgufType::kI8:
      return load<int8_t>(p);
    case GgufType::kBool:
      return *p != 0 ? 1 : 0;
    case GgufType::kU16:
      return load<uint16_t>(p);
    case GgufType::kI16:
      return load<int16_t>(p);
    case GgufType::kU32:
      return load<uint32_t>(p);
    case GgufType::kI32:
      return load<int32_t>(p);
    case GgufType::kI64:
      return load<int64_t>(p);
    case GgufType::kU64: {
      const uint64_t value = load<uint64_t>(p);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) return std::nullopt;
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

// The string at the start of raw, which was checked when the file was parsed.
std::string_view load_string(std::span<const uint8_t> raw) {
  return {reinterpret_cast<const char*>(raw.data()) + sizeof(uint64_t),
          static_cast<size_t>(load<uint64_t>(raw.data()))};
}

}  // namespace

std::optional<std::string_view> GgufValue::as_string() const {
  if (type != GgufType::kString) return std::nullopt;
  return load_string(raw);
}

std::optional<int64_t> GgufValue::as_int() const {
  return is_array() ? std::nullopt : load_int(type, raw.data());
}

std::optional<std::vector<int64_t>> GgufValue::as_ints() const {
  if (!is_array()) return std::nullopt;
  const size_t size = value_bytes(element);
  std::vector<int64_t> out;
  for (size_t at = 0; at < raw.size(); at += size) {
    const std::optional<int64_t> value =
        size != 0 ? load_int(element, raw.data() + at) : std::nullopt;
    if (!value) return std::nullopt;
    out.push_back(*value);
  }
  return out;
}

std::optional<std::vector<std::string>> GgufValue::as_strings() const {
  if (!is_array() || element != GgufType::kString) return std::nullopt;
  std::vector<std::string> out;
  for (std::span<const uint8_t> rest = raw; !rest.empty();) {
    out.emplace_back(load_string(rest));
    rest = rest.subspan(sizeof(uint64_t) + out.back().size());
  }
  return out;
}

// Reads a file from front to back; every take is checked against what is left.
class GgufParser {
 public:
  GgufParser(std::span<const uint8_t> bytes, const std::string& name)
      : bytes_(bytes), name_(name) {}

  GgufFile run() {
    const uint64_t n_tensors = read_header();
    const uint64_t n_pairs = take<uint64_t>();
    for (uint64_t i = 0; i < n_pairs; ++i) read_pair();
    read_alignment();
    for (uint64_t i = 0; i < n_tensors; ++i) read_tensor_info();
    locate_data();
    return std::move(file_);
  }

 private:
  template <typename... Args>
  [[noreturn]] void fail(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) const {
    throw Error(code,
                fmt::format("{}: {}", name_, fmt::format(format, std::forward<Args>(args)...)));
  }

  std::span<const uint8_t> take_bytes(uint64_t n) {
    const uint64_t left = bytes_.size() - at_;
    if (n > left) {
      fail(ErrorCode::kCorrupt, "the file ends at byte {} where {} more are needed", bytes_.size(),
           n - left);
    }
    const auto out = bytes_.subspan(at_, n);
    at_ += n;
    return out;
  }

  template <typename T>
  T take() {
    return load<T>(take_bytes(sizeof(T)).data());
  }

  std::string_view take_string() {
    const uint64_t n = take<uint64_t>();
    const auto text = take_bytes(n);
    return {reinterpret_cast<const char*>(text.data()), text.size()};
  }

  GgufType take_type(std::string_view key) {
    const uint32_t type = take<uint32_t>();
    if (type > static_cast<uint32_t>(GgufType::kF64)) {
      fail(ErrorCode::kCorrupt, "'{}' has type {}, which GGUF does not have", printable(key), type);
    }
    return static_cast<GgufType>(type);
  }

  // Names from damaged files go into messages.
  static std::string printable(std::string_view text) {
    std::string out;
    for (char c : text.substr(0, 64)) out += c >= ' ' && c <= '~' ? c : '?';
    if (text.size() > 64) out += "...";
    return out;
  }

  // Returns the number of tensors.
  uint64_t read_header() {
    if (bytes_.size() < sizeof kMagic || std::memcmp(bytes_.data(), kMagic, sizeof kMagic) != 0) {
      fail(ErrorCode::kCorrupt, "not a GGUF file");
    }
    at_ = sizeof kMagic;
    file_.version_ = take<uint32_t>();
    if (file_.version_ < kMinVersion || file_.version_ > kMaxVersion) {
      fail(ErrorCode::kUnsupported, "GGUF version {}, only {} and {} can be read", file_.version_,
           kMinVersion, kMaxVersion);
    }
    return take<uint64_t>();
  }

  void read_pair() {
    std::string key(take_string());
    GgufValue value;
    value.type = value.element = take_type(key);
    if (value.is_array()) {
      value.element = take_type(key);
      value.n = take<uint64_t>();
    }
    value.raw = take_elements(key, value);
    if (!file_.pair_index_.emplace(key, file_.pairs_.size()).second) {
      fail(ErrorCode::kCorrupt, "'{}' is there twice", printable(key));
    }
    file_.pairs_.emplace_back(std::move(key), value);
  }

  std::span<const uint8_t> take_elements(std::string_view key, const GgufValue& value) {
    if (value.element == GgufType::kArray) {
      fail(ErrorCode::kCorrupt, "'{}' is an array of arrays", printable(key));
    }
    const size_t size = value_bytes(value.element);
    if (size != 0) {
      if (value.n > bytes_.size() / size) {  // n * size below may not wrap
        fail(ErrorCode::kCorrupt, "'{}' has {} elements, more than the file holds", printable(key),
             value.n);
      }
      return take_bytes(value.n * size);
    }
    const size_t begin = at_;
    for (uint64_t i = 0; i < value.n; ++i) take_string();
    return bytes_.subspan(begin, at_ - begin);
  }

  void read_alignment() {
    const GgufValue* value = file_.find("general.alignment");
    if (value == nullptr) return;
    const std::optional<int64_t> alignment = value->as_int();
    const uint64_t number = static_cast<uint64_t>(alignment.value_or(0));
    if (value->type != GgufType::kU32 || !std::has_single_bit(number) || number > kMaxAlignment) {
      fail(ErrorCode::kCorrupt, "general.alignment is not a power of two up to {}", kMaxAlignment);
    }
    file_.alignment_ = number;
  }

  void read_tensor_info() {
    GgufTensor tensor;
    tensor.name = take_string();
    const uint32_t n_dims = take<uint32_t>();
    if (n_dims > kMaxDims) {
      fail(ErrorCode::kCorrupt, "tensor '{}' has {} dimensions, more than {}",
           printable(tensor.name), n_dims, kMaxDims);
    }
    tensor.n_dims = static_cast<int>(n_dims);
    for (uint32_t i = 0; i < n_dims; ++i) tensor.ne[i] = take<uint64_t>();
    tensor.type = take<uint32_t>();
    sizes_.push_back(data_bytes(tensor));
    offsets_.push_back(take<uint64_t>());
    if (!file_.tensor_index_.emplace(tensor.name, file_.tensors_.size()).second) {
      fail(ErrorCode::kCorrupt, "tensor '{}' is there twice", printable(tensor.name));
    }
    file_.tensors_.push_back(std::move(tensor));
  }

  // Bytes of a tensor's data. More than the file holds is caught here, so nothing can wrap.
  uint64_t data_bytes(const GgufTensor& tensor) const {
    const Packing packing =
        tensor.type < std::size(kPackings) ? kPackings[tensor.type] : Packing{0, 0};
    if (packing.block == 0) {
      fail(ErrorCode::kUnsupported, "tensor '{}' has type {}, which is not known",
           printable(tensor.name), tensor.type);
    }
    if (tensor.ne[0] % packing.block != 0) {
      fail(ErrorCode::kCorrupt, "tensor '{}': rows of {} elements are no multiple of {}",
           printable(tensor.name), tensor.ne[0], packing.block);
    }
    uint64_t n = packing.bytes;
    for (const uint64_t factor :
         {tensor.ne[0] / packing.block, tensor.ne[1], tensor.ne[2], tensor.ne[3]}) {
      if (factor != 0 && n > bytes_.size() / factor) {
        fail(ErrorCode::kCorrupt, "tensor '{}' is larger than the file", printable(tensor.name));
      }
      n *= factor;
    }
    return n;
  }

  // Tensors follow each other without gaps or overlaps, each padded to the alignment.
  void locate_data() {
    file_.end_ = at_;
    uint64_t offset = 0;  // from the start of the data section
    const uint64_t begin = padded(at_);
    for (size_t i = 0; i < file_.tensors_.size(); ++i) {
      GgufTensor& tensor = file_.tensors_[i];
      if (offsets_[i] != offset) {
        fail(ErrorCode::kCorrupt, "tensor '{}' is at offset {}, not {}", printable(tensor.name),
             offsets_[i], offset);
      }
      if (begin + offset > bytes_.size() || sizes_[i] > bytes_.size() - begin - offset) {
        fail(ErrorCode::kCorrupt, "tensor '{}' reaches beyond the end of the file",
             printable(tensor.name));
      }
      tensor.data = bytes_.subspan(begin + offset, sizes_[i]);
      file_.end_ = begin + offset + sizes_[i];
      offset = padded(offset + sizes_[i]);
    }
  }

  uint64_t padded(uint64_t n) const {
    return (n + file_.alignment_ - 1) / file_.alignment_ * file_.alignment_;
  }

  std::span<const uint8_t> bytes_;
  const std::string& name_;
  size_t at_ = 0;
  std::vector<uint64_t> sizes_;    // of the tensors' data
  std::vector<uint64_t> offsets_;  // from the start of the data section
  GgufFile file_;
};

GgufFile GgufFile::parse(std::span<const uint8_t> bytes, const std::string& name) {
  return GgufParser(bytes, name).run();
}

const GgufValue* GgufFile::find(const std::string& key) const {
  const auto it = pair_index_.find(key);
  return it != pair_index_.end() ? &pairs_[it->second].second : nullptr;
}

const GgufTensor* GgufFile::find_tensor(const std::string& name) const {
  const auto it = tensor_index_.find(name);
  return it != tensor_index_.end() ? &tensors_[it->second] : nullptr;
}

namespace {

template <typename T>
void put(std::vector<uint8_t>& out, T value) {
  const size_t at = out.size();
  out.resize(at + sizeof value);
  std::memcpy(out.data() + at, &value, sizeof value);
}

void put_string(std::vector<uint8_t>& out, std::string_view text) {
  put<uint64_t>(out, text.size());
  out.insert(out.end(), text.begin(), text.end());
}

void pad(std::vector<uint8_t>& out) {
  out.resize((out.size() + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment, 0);
}

}  // namespace

void GgufWriter::begin_pair(const std::string& key, GgufType type) {
  ++n_pairs_;
  put_string(pairs_, key);
  put(pairs_, static_cast<uint32_t>(type));
}

void GgufWriter::begin_array(const std::string& key, GgufType element, uint64_t n) {
  begin_pair(key, GgufType::kArray);
  put(pairs_, static_cast<uint32_t>(element));
  put(pairs_, n);
}

void GgufWriter::add_string(const std::string& key, std::string_view value) {
  begin_pair(key, GgufType::kString);
  put_string(pairs_, value);
}

void GgufWriter::add_u32(const std::string& key, uint32_t value) {
  begin_pair(key, GgufType::kU32);
  put(pairs_, value);
}

void GgufWriter::add_u64(const std::string& key, uint64_t value) {
  begin_pair(key, GgufType::kU64);
  put(pairs_, value);
}

void GgufWriter::add_i32s(const std::string& key, std::span<const int32_t> values) {
  begin_array(key, GgufType::kI32, values.size());
  for (int32_t value : values) put(pairs_, value);
}

void GgufWriter::add_strings(const std::string& key, std::span<const std::string> values) {
  begin_array(key, GgufType::kString, values.size());
  for (const std::string& value : values) put_string(pairs_, value);
}

void GgufWriter::add_f32(const std::string& name, std::span<const uint64_t> ne,
                         std::span<const float> data) {
  add_tensor(name, ne, kTensorF32, data.size(), data.data(), data.size_bytes());
}

void GgufWriter::add_i8(const std::string& name, std::span<const uint64_t> ne,
                        std::span<const int8_t> data) {
  add_tensor(name, ne, kTensorI8, data.size(), data.data(), data.size_bytes());
}

void GgufWriter::add_i32(const std::string& name, std::span<const uint64_t> ne,
                         std::span<const int32_t> data) {
  add_tensor(name, ne, kTensorI32, data.size(), data.data(), data.size_bytes());
}

void GgufWriter::add_tensor(const std::string& name, std::span<const uint64_t> ne, uint32_t type,
                            uint64_t n_elements, const void* data, size_t n_bytes) {
  uint64_t n = 1;
  for (uint64_t size : ne) n *= size;
  if (ne.empty() || ne.size() > kMaxDims || n != n_elements) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("tensor '{}': {} elements for a shape of {}", name, n_elements, n));
  }
  tensors_.push_back(
      {name, {ne.begin(), ne.end()}, type, {static_cast<const uint8_t*>(data), n_bytes}});
}

std::vector<uint8_t> GgufWriter::finish() const {
  std::vector<uint8_t> out(std::begin(kMagic), std::end(kMagic));
  put(out, kWriteVersion);
  put<uint64_t>(out, tensors_.size());
  put(out, n_pairs_);
  out.insert(out.end(), pairs_.begin(), pairs_.end());
  uint64_t offset = 0;
  for (const Tensor& tensor : tensors_) {
    put_string(out, tensor.name);
    put(out, static_cast<uint32_t>(tensor.ne.size()));
    for (uint64_t size : tensor.ne) put(out, size);
    put(out, tensor.type);
    put(out, offset);
    offset += (tensor.data.size() + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
  }
  pad(out);
  for (const Tensor& tensor : tensors_) {
    out.insert(out.end(), tensor.data.begin(), tensor.data.end());
    pad(out);
  }
  return out;
}

}  // namespace headq
