// The part of the profile file that holds the codes of nib (docs/format.md).

#include "codec/nib_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "codec/trellis.h"

namespace headq {
namespace {

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

// Reads the tensors of one layer; why is what went wrong first.
class Reader {
 public:
  Reader(const GgufFile& file, const std::string& prefix) : file_(file), prefix_(prefix) {}

  // All of a tensor [rows][columns].
  template <typename T>
  std::vector<T> take(const char* name, uint32_t type, uint64_t rows, uint64_t columns) {
    std::vector<T> out;
    if (!why.empty()) return out;
    const GgufTensor* tensor = file_.find_tensor(prefix_ + name);
    if (tensor == nullptr) {
      why = fmt::format("it has no tensor {}{}", prefix_, name);
    } else if (tensor->type != type || tensor->n_dims != 2 || tensor->ne[0] != columns ||
               tensor->ne[1] != rows || tensor->data.size() != rows * columns * sizeof(T)) {
      why = fmt::format("{}{} is not of its layer's shape", prefix_, name);
    } else {
      out.resize(rows * columns);
      std::memcpy(out.data(), tensor->data.data(), tensor->data.size());
    }
    return out;
  }

  std::string why;

 private:
  const GgufFile& file_;
  const std::string& prefix_;
};

// Takes n elements from the front.
template <typename T>
std::vector<T> split(std::span<const T>& rest, size_t n) {
  const std::vector<T> out(rest.begin(), rest.begin() + static_cast<ptrdiff_t>(n));
  rest = rest.subspan(n);
  return out;
}

bool all_finite(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float x) { return std::isfinite(x); });
}

// Terms of nibbles that are a chain.
size_t count_terms(std::span<const int32_t> reach) {
  size_t n = 0;
  for (size_t g = 0; g < reach.size() / 2; ++g) {
    n += static_cast<size_t>(reach[2 * g + 1] - reach[2 * g]);
  }
  return n;
}

}  // namespace

void add_nib_tensors(GgufWriter& out, const std::string& prefix, int d,
                     std::span<const NibCode* const> codes, NibArrays& kept) {
  for (const NibCode* code : codes) {
    kept.sizes.push_back(code->n_nibbles());
    kept.sizes.push_back(code->n_coords());
    append(kept.mean, code->mean);
    append(kept.analysis, code->analysis);
    append(kept.synthesis, code->synthesis);
    append(kept.reach, code->reach);
    append(kept.scale, code->scale);
    append(kept.codebook, code->codebook);
    kept.errors.push_back(code->error);
    kept.errors.push_back(code->power);
  }
  const uint64_t width = static_cast<uint64_t>(d);
  const auto shape = [](uint64_t columns, size_t elements) {
    return std::vector<uint64_t>{columns, elements / columns};
  };
  out.add_i32(prefix + "sizes", shape(2, kept.sizes.size()), kept.sizes);
  out.add_f32(prefix + "mean", shape(width, kept.mean.size()), kept.mean);
  out.add_f32(prefix + "analysis", shape(width, kept.analysis.size()), kept.analysis);
  out.add_f32(prefix + "synthesis", shape(width, kept.synthesis.size()), kept.synthesis);
  out.add_i32(prefix + "reach", shape(2, kept.reach.size()), kept.reach);
  out.add_f32(prefix + "scale", shape(1, kept.scale.size()), kept.scale);
  out.add_i8(prefix + "codebook", shape(16, kept.codebook.size()), kept.codebook);
  out.add_f32(prefix + "errors", shape(2, kept.errors.size()), kept.errors);
}

std::string read_nib_tensors(const GgufFile& file, const std::string& prefix, int d, int n_heads,
                             std::vector<NibCode>& codes) {
  const uint64_t heads = static_cast<uint64_t>(n_heads), width = static_cast<uint64_t>(d);
  Reader in(file, prefix);
  const auto sizes = in.take<int32_t>("sizes", kTensorI32, heads, 2);
  uint64_t n_nibbles = 0, n_coords = 0;
  for (size_t h = 0; h < sizes.size() / 2; ++h) {
    if (sizes[2 * h] < 1 || sizes[2 * h] > kMaxNibbles || sizes[2 * h + 1] < 1 ||
        sizes[2 * h + 1] > d) {
      return fmt::format("{}sizes of head {} are out of range", prefix, h);
    }
    n_nibbles += static_cast<uint64_t>(sizes[2 * h]);
    n_coords += static_cast<uint64_t>(sizes[2 * h + 1]);
  }
  const auto mean = in.take<float>("mean", kTensorF32, heads, width);
  const auto analysis = in.take<float>("analysis", kTensorF32, n_coords, width);
  const auto synthesis = in.take<float>("synthesis", kTensorF32, n_coords, width);
  const auto reach = in.take<int32_t>("reach", kTensorI32, n_nibbles, 2);
  if (!in.why.empty()) return in.why;
  uint64_t n_terms = 0;
  std::vector<size_t> head_terms;
  std::span<const int32_t> rest = reach;
  for (size_t h = 0; h < heads; ++h) {
    const std::vector<int32_t> own = split(rest, 2 * static_cast<size_t>(sizes[2 * h]));
    if (!why_no_chain(own, sizes[2 * h + 1]).empty()) {
      return fmt::format("{}reach of head {} is no chain", prefix, h);
    }
    head_terms.push_back(count_terms(own));
    n_terms += head_terms.back();
  }
  const auto scale = in.take<float>("scale", kTensorF32, n_terms, 1);
  const auto codebook = in.take<int8_t>("codebook", kTensorI8, n_terms, 16);
  const auto errors = in.take<float>("errors", kTensorF32, heads, 2);
  if (!in.why.empty()) return in.why;

  std::span<const float> m = mean, a = analysis, s = synthesis, u = scale;
  std::span<const int32_t> r = reach;
  std::span<const int8_t> b = codebook;
  for (size_t h = 0; h < heads; ++h) {
    const size_t coded = static_cast<size_t>(sizes[2 * h + 1]) * static_cast<size_t>(d);
    NibCode& code = codes.emplace_back();
    code.mean = split(m, static_cast<size_t>(d));
    code.analysis = split(a, coded);
    code.synthesis = split(s, coded);
    code.reach = split(r, 2 * static_cast<size_t>(sizes[2 * h]));
    code.scale = split(u, head_terms[h]);
    code.codebook = split(b, 16 * head_terms[h]);
    code.error = errors[2 * h];
    code.power = errors[2 * h + 1];
  }
  return "";
}

std::string why_bad_nib(const NibCode& code, int d) {
  const size_t width = static_cast<size_t>(d);
  if (code.mean.size() != width || code.analysis.empty() || code.analysis.size() % width != 0 ||
      code.analysis.size() > width * width || code.synthesis.size() != code.analysis.size()) {
    return fmt::format("does not fit head_dim {}", d);
  }
  if (!why_no_chain(code.reach, code.n_coords()).empty()) return "is no chain of nibbles";
  const size_t n_terms = count_terms(code.reach);
  if (code.scale.size() != n_terms || code.codebook.size() != 16 * code.scale.size()) {
    return fmt::format("has {} scales and {} table entries for {} terms", code.scale.size(),
                       code.codebook.size(), n_terms);
  }
  if (!all_finite(code.mean) || !all_finite(code.analysis) || !all_finite(code.synthesis) ||
      !all_finite(code.scale)) {
    return "holds a number that is not finite";
  }
  if (!(code.error >= 0.0f) || !(code.power >= code.error) || !std::isfinite(code.power)) {
    return fmt::format("expects an error of {} of {}", code.error, code.power);
  }
  return "";
}

}  // namespace headq
