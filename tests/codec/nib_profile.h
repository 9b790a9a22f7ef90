#pragma once

#include "codec/sample_nib.h"
#include "headq/profile.h"
#include "headq/spec.h"
#include "oracle/nib.h"

namespace headq::testing {

// A profile of layer 0 with codes for the sides of kv that are nib. Every head has another number
// of nibbles: keys two coordinates a nibble, values one.
inline Profile nib_profile(const LayerShape& shape, const std::string& kv) {
  const KvSpec spec = KvSpec::parse(kv);
  Profile profile;
  profile.nib = spec.to_string();
  profile.layer_ids = {0};
  profile.shapes = {shape};
  for (int h = 0; h < shape.n_head_kv; ++h) {
    const uint64_t seed = static_cast<uint64_t>(100 + h);
    HeadProfile& head = profile.heads.emplace_back();
    if (spec.k.is_nib()) head.key_nib = sample_nib(shape.d_k, shape.d_k / 2 - 3 * h, 2, seed);
    if (spec.v.is_nib()) head.value_nib = sample_nib(shape.d_v, shape.d_v / 2 + 3 * h, 1, seed);
  }
  return profile;
}

// The same code for the oracle.
inline oracle::Nib oracle_nib(const NibCode& code) {
  oracle::Nib out;
  out.mean.assign(code.mean.begin(), code.mean.end());
  out.analysis.assign(code.analysis.begin(), code.analysis.end());
  out.synthesis.assign(code.synthesis.begin(), code.synthesis.end());
  out.reach.assign(code.reach.begin(), code.reach.end());
  out.scale.assign(code.scale.begin(), code.scale.end());
  for (size_t i = 0; i < code.codebook.size(); i += 16) {
    out.codebook.emplace_back(code.codebook.begin() + static_cast<ptrdiff_t>(i),
                              code.codebook.begin() + static_cast<ptrdiff_t>(i + 16));
  }
  return out;
}

}  // namespace headq::testing
