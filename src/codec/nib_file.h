#pragma once

#include <span>
#include <string>
#include <vector>

#include "core/gguf.h"
#include "headq/profile.h"

namespace headq {

inline constexpr int kNibTensors = 8;  // of one layer and side

// Appends the tensors of one layer's codes, one code a head, whose names begin with prefix
// (docs/format.md), keeping the arrays they point to in `kept`.
struct NibArrays {
  std::vector<int32_t> sizes, reach;
  std::vector<float> mean, analysis, synthesis, scale, errors;
  std::vector<int8_t> codebook;
};
void add_nib_tensors(GgufWriter& out, const std::string& prefix, int d,
                     std::span<const NibCode* const> codes, NibArrays& kept);

// The inverse for a layer of n_heads. Returns "" or what is wrong with the file.
std::string read_nib_tensors(const GgufFile& file, const std::string& prefix, int d, int n_heads,
                             std::vector<NibCode>& codes);

// "" for a code that NibCodec takes, else what is wrong with it.
std::string why_bad_nib(const NibCode& code, int d);

}  // namespace headq
