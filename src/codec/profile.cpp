// The profile file, version 1. docs/format.md specifies it; both change together.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <iterator>
#include <list>
#include <numeric>
#include <string_view>

#include "codec/nib_file.h"
#include "codec/profile_file.h"
#include "core/file.h"
#include "core/gguf.h"
#include "core/sha256.h"
#include "headq/error.h"
#include "headq/spec.h"

namespace headq {
namespace {

constexpr std::string_view kFileType = "headq-profile";
constexpr uint32_t kGgufVersion = 3;
constexpr size_t kChecksumDigits = 64;
constexpr int kMaxLayer = 4095;
constexpr int kMaxHeads = 4096;
constexpr double kOrthonormal = 1e-3;  // largest |<u_i, u_j> - (i == j)| of a basis

enum class Extent { kBasis, kKey, kValue };

// A tensor of every layer: [n_head_kv][rows][columns], rows being n_basis for a basis and absent
// otherwise.
struct Field {
  const char* name;
  std::vector<float> HeadProfile::*member;
  Extent extent;
  bool is_spectrum;  // not negative, descending
};

constexpr Field kFields[] = {
    {"query_basis", &HeadProfile::query_basis, Extent::kBasis, false},
    {"query_spectrum", &HeadProfile::query_spectrum, Extent::kKey, true},
    {"key_basis", &HeadProfile::key_basis, Extent::kBasis, false},
    {"key_spectrum", &HeadProfile::key_spectrum, Extent::kKey, true},
    {"key_mean", &HeadProfile::key_mean, Extent::kKey, false},
    {"query_energy", &HeadProfile::query_energy, Extent::kKey, false},
    {"key_variance", &HeadProfile::key_variance, Extent::kKey, false},
    {"value_variance", &HeadProfile::value_variance, Extent::kValue, false},
};

// Sizes of a layer's tensor, fastest dimension first.
std::vector<uint64_t> tensor_sizes(const Field& field, const LayerShape& shape, int n_basis) {
  const int columns = field.extent == Extent::kValue ? shape.d_v : shape.d_k;
  std::vector<uint64_t> ne = {static_cast<uint64_t>(columns)};
  if (field.extent == Extent::kBasis) ne.push_back(static_cast<uint64_t>(n_basis));
  ne.push_back(static_cast<uint64_t>(shape.n_head_kv));
  return ne;
}

size_t head_elements(const Field& field, const LayerShape& shape, int n_basis) {
  const std::vector<uint64_t> ne = tensor_sizes(field, shape, n_basis);
  return std::accumulate(ne.begin(), ne.end() - 1, size_t{1}, std::multiplies<size_t>());
}

std::string tensor_name(int layer, const Field& field) {
  return fmt::format("blk.{}.{}", layer, field.name);
}

// The two sides whose codes a profile may hold.
struct NibSide {
  const char* name;
  CodecSpec KvSpec::*spec;
  NibCode HeadProfile::*member;
  int LayerShape::*head_dim;
};

constexpr NibSide kNibSides[] = {
    {"key_nib", &KvSpec::k, &HeadProfile::key_nib, &LayerShape::d_k},
    {"value_nib", &KvSpec::v, &HeadProfile::value_nib, &LayerShape::d_v},
};

std::string nib_prefix(int layer, const NibSide& side) {
  return fmt::format("blk.{}.{}.", layer, side.name);
}

bool is_in(int value, int lo, int hi) { return value >= lo && value <= hi; }

// The functions named why_* return "" for what is right and else what is wrong.

std::string why_bad_geometry(const Profile& p) {
  if (p.n_ctx < 0) return fmt::format("n_ctx {} is negative", p.n_ctx);
  if (!is_in(p.n_basis, 1, kMaxSideRank)) {
    return fmt::format("n_basis {} is not in 1..{}", p.n_basis, kMaxSideRank);
  }
  if (p.layer_ids.empty()) return "it has no layers";
  if (p.shapes.size() != p.layer_ids.size()) {
    return fmt::format("{} layers have {} shapes", p.layer_ids.size(), p.shapes.size());
  }
  int previous = -1;
  for (size_t i = 0; i < p.shapes.size(); ++i) {
    const int il = p.layer_ids[i];
    const LayerShape& shape = p.shapes[i];
    if (!is_in(il, previous + 1, kMaxLayer)) {
      return fmt::format("layer {} behind layer {} is not ascending up to {}", il, previous,
                         kMaxLayer);
    }
    if (!is_in(shape.n_head_kv, 1, kMaxHeads)) {
      return fmt::format("layer {}: {} KV heads are not in 1..{}", il, shape.n_head_kv, kMaxHeads);
    }
    for (int d : {shape.d_k, shape.d_v}) {
      if (!is_in(d, kMinHeadDim, kMaxHeadDim)) {
        return fmt::format("layer {}: head_dim {} is not in {}..{}", il, d, kMinHeadDim,
                           kMaxHeadDim);
      }
    }
    previous = il;
  }
  return "";
}

// basis: [n][d].
bool is_orthonormal(std::span<const float> basis, int n, int d) {
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j <= i; ++j) {
      double dot = i == j ? -1.0 : 0.0;
      for (int c = 0; c < d; ++c) {
        dot += static_cast<double>(basis[static_cast<size_t>(i * d + c)]) *
               static_cast<double>(basis[static_cast<size_t>(j * d + c)]);
      }
      if (!(std::abs(dot) <= kOrthonormal)) return false;
    }
  }
  return true;
}

std::string why_bad_values(const Field& field, std::span<const float> values, int n_basis, int d) {
  if (!std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); })) {
    return "holds a number that is not finite";
  }
  if (field.extent == Extent::kBasis) {
    return is_orthonormal(values, n_basis, d) ? "" : "is not orthonormal";
  }
  if (field.member == &HeadProfile::key_mean) return "";
  if (std::any_of(values.begin(), values.end(), [](float x) { return x < 0; })) {
    return "holds a negative number";
  }
  if (field.is_spectrum && !std::is_sorted(values.begin(), values.end(), std::greater<>())) {
    return "is not in descending order";
  }
  return "";
}

// The codecs that Profile::nib names, dense ones for "".
KvSpec held_codecs(const std::string& nib) { return nib.empty() ? KvSpec{} : KvSpec::parse(nib); }

// Profile::nib must be its own canonical text.
std::string why_bad_names(const std::string& nib) {
  if (nib.empty()) return "";
  try {
    const KvSpec kv = KvSpec::parse(nib);
    if (kv.to_string() == nib && kv.k.wrong_sign == 0) return "";
  } catch (const Error& e) {
    return e.what();
  }
  return fmt::format("codecs '{}' are not what a profile holds", nib);
}

// Every head must have the codes that Profile::nib names, and no others.
std::string why_bad_codes(const Profile& p) {
  if (std::string why = why_bad_names(p.nib); !why.empty()) return why;
  const KvSpec held = held_codecs(p.nib);
  for (size_t entry = 0; entry < p.shapes.size(); ++entry) {
    const std::span<const HeadProfile> heads = p.layer_heads(static_cast<int>(entry));
    for (const NibSide& side : kNibSides) {
      const bool wanted = (held.*side.spec).is_nib();
      for (size_t h = 0; h < heads.size(); ++h) {
        const NibCode& code = heads[h].*side.member;
        const std::string why = wanted ? why_bad_nib(code, p.shapes[entry].*side.head_dim)
                                       : (code == NibCode{} ? "" : "is there without its codec");
        if (!why.empty()) {
          return fmt::format("blk.{}.{} of head {} {}", p.layer_ids[entry], side.name, h, why);
        }
      }
    }
  }
  return "";
}

std::string why_invalid(const Profile& p) {
  if (std::string why = why_bad_geometry(p); !why.empty()) return why;
  size_t n_heads = 0;
  for (const LayerShape& shape : p.shapes) n_heads += static_cast<size_t>(shape.n_head_kv);
  if (p.heads.size() != n_heads) {
    return fmt::format("it has {} heads, the shapes say {}", p.heads.size(), n_heads);
  }
  for (size_t entry = 0; entry < p.shapes.size(); ++entry) {
    const LayerShape& shape = p.shapes[entry];
    const std::span<const HeadProfile> heads = p.layer_heads(static_cast<int>(entry));
    for (const Field& field : kFields) {
      for (size_t h = 0; h < heads.size(); ++h) {
        const std::vector<float>& values = heads[h].*field.member;
        const size_t n = head_elements(field, shape, p.n_basis);
        const std::string why = values.size() != n
                                    ? fmt::format("has {} elements, not {}", values.size(), n)
                                    : why_bad_values(field, values, p.n_basis, shape.d_k);
        if (!why.empty()) {
          return fmt::format("{} of head {} {}", tensor_name(p.layer_ids[entry], field), h, why);
        }
      }
    }
  }
  return why_bad_codes(p);
}

// Where the digits of headq.checksum, a string, lie in the file.
size_t checksum_offset(std::span<const uint8_t> file, const GgufValue& checksum) {
  return static_cast<size_t>(checksum.raw.data() - file.data()) + sizeof(uint64_t);
}

// SHA-256 of a file as if its checksum, which starts at byte `at`, were all zero digits.
std::string checksum_of(std::span<const uint8_t> file, size_t at) {
  Sha256 sha;
  sha.update(file.first(at));
  sha.update(as_bytes(std::string(kChecksumDigits, '0')));
  sha.update(file.subspan(at + kChecksumDigits));
  return sha.hex();
}

// Reads the pairs and tensors of a profile; everything missing or odd is kCorrupt.
class ProfileReader {
 public:
  ProfileReader(std::span<const uint8_t> bytes, const std::string& name)
      : name_(name), bytes_(bytes), file_(GgufFile::parse(bytes, name)) {}

  Profile run() {
    const GgufValue* type = file_.find("general.type");
    if (type == nullptr || type->as_string() != kFileType) fail("not a headq profile");
    if (file_.version() != kGgufVersion) fail("not in GGUF version 3");
    check_integrity();
    check_version();
    read_pairs();
    if (const std::string why = why_bad_geometry(profile_); !why.empty()) fail(why);
    read_tensors();
    if (const std::string why = why_invalid(profile_); !why.empty()) fail(why);
    return std::move(profile_);
  }

 private:
  [[noreturn]] void fail(std::string_view why) const {
    throw Error(ErrorCode::kCorrupt, fmt::format("{}: {}", name_, why));
  }

  void check_integrity() const {
    const std::string_view stored = get_string("headq.checksum");
    if (stored.size() != kChecksumDigits) fail("headq.checksum is not 64 digits long");
    const uint64_t end = (file_.end() + kGgufAlignment - 1) / kGgufAlignment * kGgufAlignment;
    if (bytes_.size() != end) {
      fail(fmt::format("it has {} bytes, its header describes {}", bytes_.size(), end));
    }
    if (checksum_of(bytes_, checksum_offset(bytes_, get("headq.checksum"))) != stored) {
      fail("it is damaged: the checksum does not match");
    }
  }

  void check_version() const {
    const int64_t version = get_int("headq.version", GgufType::kU32);
    if (version > Profile::kVersion) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("{}: profile version {}, this headq reads {}", name_, version,
                              Profile::kVersion));
    }
    if (version != Profile::kVersion) fail(fmt::format("version {} never existed", version));
  }

  void read_pairs() {
    constexpr size_t kPairs = 16;
    if (file_.pairs().size() != kPairs) {
      fail(fmt::format("it has {} metadata pairs, not {}", file_.pairs().size(), kPairs));
    }
    profile_.tool_version = get_string("headq.tool_version");
    profile_.model_name = get_string("headq.model.name");
    profile_.model_arch = get_string("headq.model.arch");
    profile_.model_fingerprint = get_string("headq.model.fingerprint");
    const auto sources = get("headq.sources").as_strings();
    if (!sources) fail("headq.sources is not an array of strings");
    profile_.sources = *sources;
    profile_.n_tokens = static_cast<uint64_t>(get_int("headq.n_tokens", GgufType::kU64));
    profile_.n_ctx = get_small("headq.n_ctx");
    profile_.nib = get_string("headq.nib");
    profile_.n_basis = get_small("headq.n_basis");
    profile_.layer_ids = get_i32s("headq.layer_ids");
    const std::vector<int> n_head_kv = get_i32s("headq.n_head_kv");
    const std::vector<int> d_k = get_i32s("headq.d_k");
    const std::vector<int> d_v = get_i32s("headq.d_v");
    const size_t n = profile_.layer_ids.size();
    if (n_head_kv.size() != n || d_k.size() != n || d_v.size() != n) {
      fail("its layer arrays have unlike lengths");
    }
    for (size_t i = 0; i < n; ++i) profile_.shapes.push_back({n_head_kv[i], d_k[i], d_v[i]});
  }

  void read_tensors() {
    if (const std::string why = why_bad_names(profile_.nib); !why.empty()) fail(why);
    const KvSpec held = held_codecs(profile_.nib);
    std::vector<const NibSide*> nib_sides;
    for (const NibSide& side : kNibSides) {
      if ((held.*side.spec).is_nib()) nib_sides.push_back(&side);
    }
    const size_t layer_tensors = std::size(kFields) + kNibTensors * nib_sides.size();
    if (file_.tensors().size() != profile_.shapes.size() * layer_tensors) {
      fail(fmt::format("it has {} tensors for {} layers", file_.tensors().size(),
                       profile_.shapes.size()));
    }
    for (size_t entry = 0; entry < profile_.shapes.size(); ++entry) {
      read_layer(entry);
      for (const NibSide* side : nib_sides) read_codes(entry, *side);
    }
  }

  // Into the heads that read_layer() has just made.
  void read_codes(size_t entry, const NibSide& side) {
    const LayerShape& shape = profile_.shapes[entry];
    std::vector<NibCode> codes;
    const std::string why =
        read_nib_tensors(file_, nib_prefix(profile_.layer_ids[entry], side), shape.*side.head_dim,
                         shape.n_head_kv, codes);
    if (!why.empty()) fail(why);
    const size_t first = profile_.heads.size() - codes.size();
    for (size_t h = 0; h < codes.size(); ++h) {
      profile_.heads[first + h].*side.member = std::move(codes[h]);
    }
  }

  void read_layer(size_t entry) {
    const LayerShape& shape = profile_.shapes[entry];
    std::vector<HeadProfile> heads;  // made once the first tensor proved the number of heads
    for (const Field& field : kFields) {
      const std::string name = tensor_name(profile_.layer_ids[entry], field);
      const GgufTensor* tensor = file_.find_tensor(name);
      if (tensor == nullptr) fail(fmt::format("it has no tensor {}", name));
      const std::vector<uint64_t> ne = tensor_sizes(field, shape, profile_.n_basis);
      if (tensor->type != kTensorF32 || tensor->n_dims != static_cast<int>(ne.size()) ||
          !std::equal(ne.begin(), ne.end(), tensor->ne.begin())) {
        fail(fmt::format("{} is not f32 of its layer's shape", name));
      }
      heads.resize(static_cast<size_t>(shape.n_head_kv));
      const size_t n = head_elements(field, shape, profile_.n_basis);
      for (size_t h = 0; h < heads.size(); ++h) {
        std::vector<float>& out = heads[h].*field.member;
        out.resize(n);
        std::memcpy(out.data(), tensor->data.data() + h * n * sizeof(float), n * sizeof(float));
      }
    }
    std::move(heads.begin(), heads.end(), std::back_inserter(profile_.heads));
  }

  const GgufValue& get(const std::string& key) const {
    const GgufValue* value = file_.find(key);
    if (value == nullptr) fail(fmt::format("it has no {}", key));
    return *value;
  }

  std::string_view get_string(const std::string& key) const {
    const auto text = get(key).as_string();
    if (!text) fail(fmt::format("{} is not a string", key));
    return *text;
  }

  int64_t get_int(const std::string& key, GgufType type) const {
    const GgufValue& value = get(key);
    const auto number = value.as_int();
    if (value.type != type || !number) fail(fmt::format("{} is of another type", key));
    return *number;
  }

  int get_small(const std::string& key) const {
    const int64_t value = get_int(key, GgufType::kU32);
    if (value > INT32_MAX) fail(fmt::format("{} {} is too large", key, value));
    return static_cast<int>(value);
  }

  std::vector<int> get_i32s(const std::string& key) const {
    const GgufValue& value = get(key);
    const auto numbers = value.as_ints();
    if (!numbers || value.element != GgufType::kI32) {
      fail(fmt::format("{} is not an array of i32", key));
    }
    return {numbers->begin(), numbers->end()};
  }

  const std::string& name_;
  std::span<const uint8_t> bytes_;
  GgufFile file_;
  Profile profile_;
};

void write_pairs(const Profile& p, GgufWriter& out) {
  std::vector<int> n_head_kv, d_k, d_v;
  for (const LayerShape& shape : p.shapes) {
    n_head_kv.push_back(shape.n_head_kv);
    d_k.push_back(shape.d_k);
    d_v.push_back(shape.d_v);
  }
  out.add_string("general.type", kFileType);
  out.add_u32("headq.version", Profile::kVersion);
  out.add_string("headq.checksum", std::string(kChecksumDigits, '0'));
  out.add_string("headq.tool_version", p.tool_version);
  out.add_string("headq.model.name", p.model_name);
  out.add_string("headq.model.arch", p.model_arch);
  out.add_string("headq.model.fingerprint", p.model_fingerprint);
  out.add_strings("headq.sources", p.sources);
  out.add_u64("headq.n_tokens", p.n_tokens);
  out.add_u32("headq.n_ctx", static_cast<uint32_t>(p.n_ctx));
  out.add_string("headq.nib", p.nib);
  out.add_u32("headq.n_basis", static_cast<uint32_t>(p.n_basis));
  out.add_i32s("headq.layer_ids", p.layer_ids);
  out.add_i32s("headq.n_head_kv", n_head_kv);
  out.add_i32s("headq.d_k", d_k);
  out.add_i32s("headq.d_v", d_v);
}

}  // namespace

int Profile::find_layer(int il) const {
  const auto it = std::lower_bound(layer_ids.begin(), layer_ids.end(), il);
  return it != layer_ids.end() && *it == il ? static_cast<int>(it - layer_ids.begin()) : -1;
}

std::span<const HeadProfile> Profile::layer_heads(int entry) const {
  size_t begin = 0;
  for (int i = 0; i < entry; ++i) {
    begin += static_cast<size_t>(shapes[static_cast<size_t>(i)].n_head_kv);
  }
  const int n = shapes[static_cast<size_t>(entry)].n_head_kv;
  return std::span(heads).subspan(begin, static_cast<size_t>(n));
}

std::string Profile::why_lacks(const KvSpec& kv) const {
  const KvSpec held = held_codecs(nib);
  for (const NibSide& side : kNibSides) {
    CodecSpec wanted = kv.*side.spec;
    wanted.wrong_sign = 0;
    if (!wanted.is_nib() || wanted == held.*side.spec) continue;
    return fmt::format("the profile holds {}, not {}: headq calibrate --kv {} makes one that does",
                       nib.empty() ? "no codes of nib" : nib, kv.to_string(), kv.to_string());
  }
  return "";
}

uint64_t Profile::payload_bytes() const {
  uint64_t n = 0;
  for (const HeadProfile& head : heads) {
    for (const Field& field : kFields) n += (head.*field.member).size() * sizeof(float);
    n += head.key_nib.bytes() + head.value_nib.bytes();
  }
  return n;
}

std::vector<uint8_t> serialize_profile(const Profile& p) {
  if (const std::string why = why_invalid(p); !why.empty()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("profile of '{}': {}", p.model_name, why));
  }
  GgufWriter out;
  write_pairs(p, out);
  // The writer reads the tensors when it finishes, so they stay alive until then.
  std::vector<std::vector<float>> tensors;
  std::list<NibArrays> codes;
  for (size_t entry = 0; entry < p.shapes.size(); ++entry) {
    for (const Field& field : kFields) {
      std::vector<float>& data = tensors.emplace_back();
      for (const HeadProfile& head : p.layer_heads(static_cast<int>(entry))) {
        const std::vector<float>& values = head.*field.member;
        data.insert(data.end(), values.begin(), values.end());
      }
      out.add_f32(tensor_name(p.layer_ids[entry], field),
                  tensor_sizes(field, p.shapes[entry], p.n_basis), data);
    }
    for (const NibSide& side : kNibSides) {
      std::vector<const NibCode*> of_heads;
      for (const HeadProfile& head : p.layer_heads(static_cast<int>(entry))) {
        if (!(head.*side.member).reach.empty()) of_heads.push_back(&(head.*side.member));
      }
      if (of_heads.empty()) continue;
      add_nib_tensors(out, nib_prefix(p.layer_ids[entry], side), p.shapes[entry].*side.head_dim,
                      of_heads, codes.emplace_back());
    }
  }
  std::vector<uint8_t> bytes = out.finish();
  const GgufFile file = GgufFile::parse(bytes, p.model_name);
  const size_t at = checksum_offset(bytes, *file.find("headq.checksum"));
  const std::string checksum = checksum_of(bytes, at);
  std::copy(checksum.begin(), checksum.end(), bytes.begin() + static_cast<ptrdiff_t>(at));
  return bytes;
}

Profile parse_profile(std::span<const uint8_t> bytes, const std::string& name) {
  return ProfileReader(bytes, name).run();
}

Profile Profile::load(const std::string& path) {
  const MappedFile file(path);
  return parse_profile(file.bytes(), path);
}

void Profile::save(const std::string& path) const { write_file(path, serialize_profile(*this)); }

}  // namespace headq
