#pragma once

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "headq/model_info.h"
#include "headq/profile.h"

namespace headq::testing {

// Row i of an orthonormal basis of n <= d / 2 rows: two equal elements at 2i and 2i + 1.
inline std::vector<float> pair_basis(int n, int d) {
  std::vector<float> out(static_cast<size_t>(n * d), 0.0f);
  for (int i = 0; i < n; ++i) {
    out[static_cast<size_t>(i * d + 2 * i)] = static_cast<float>(std::sqrt(0.5));
    out[static_cast<size_t>(i * d + 2 * i + 1)] = static_cast<float>(std::sqrt(0.5));
  }
  return out;
}

// scale, scale / 2, scale / 4, ...
inline std::vector<float> halves(int n, float scale) {
  std::vector<float> out;
  for (int i = 0; i < n; ++i, scale *= 0.5f) out.push_back(scale);
  return out;
}

// A code whose numbers are exact on every machine: nibble g reaches coordinates g and g + 1 as far
// as there are any, coordinate c is channel c, stretched by powers of two.
inline NibCode plain_nib(int d, int n_nibbles, float scale) {
  NibCode code;
  code.mean.assign(static_cast<size_t>(d), 0.5f * scale);
  code.analysis.assign(static_cast<size_t>(n_nibbles * d), 0.0f);
  code.synthesis = code.analysis;
  for (int g = 0; g < n_nibbles; ++g) {
    const size_t diagonal = static_cast<size_t>(g * d + g);
    code.analysis[diagonal] = std::ldexp(scale, g % 4);
    code.synthesis[diagonal] = std::ldexp(1.0f, -(g % 4)) / scale;
    code.reach.push_back(g);
    code.reach.push_back(std::min(g + 2, n_nibbles));
    for (int c = g; c < code.reach.back(); ++c) {
      code.scale.push_back(std::ldexp(scale, -6 - c % 4));
      for (int n = 0; n < 16; ++n) {
        code.codebook.push_back(static_cast<int8_t>((n - 8) * 15 + 7 * (c - g)));
      }
    }
  }
  code.error = 0.25f * scale;
  code.power = 3.0f * scale;
  return code;
}

// Another number of nibbles for every head and side.
inline HeadProfile sample_head(const LayerShape& shape, int n_basis, float scale) {
  HeadProfile head;
  head.query_basis = pair_basis(n_basis, shape.d_k);
  head.query_spectrum = halves(shape.d_k, scale);
  head.key_basis = pair_basis(n_basis, shape.d_k);
  head.key_spectrum = halves(shape.d_k, 3.0f * scale);
  head.key_mean.assign(static_cast<size_t>(shape.d_k), -0.25f * scale);
  head.query_energy = halves(shape.d_k, 5.0f * scale);
  head.key_variance = halves(shape.d_k, 7.0f * scale);
  head.value_variance = halves(shape.d_v, 9.0f * scale);
  const int more = static_cast<int>(scale) % 8;
  head.key_nib = plain_nib(shape.d_k, 2 + more, scale);
  head.value_nib = plain_nib(shape.d_v, 1 + more, 2.0f * scale);
  return head;
}

// Two layers of unlike shape, three heads, every number different from head to head.
inline Profile sample_profile() {
  Profile p;
  p.model_name = "Sample 1M";
  p.model_arch = "llama";
  p.model_fingerprint = std::string(60, 'a') + "0123";
  p.tool_version = "0.1.0";
  p.sources = {"first.txt 1000 " + std::string(64, '1'), "second.txt 2000 " + std::string(64, '2')};
  p.n_tokens = 4096;
  p.n_ctx = 512;
  p.nib = "nib2.5/nib2";
  p.n_basis = 4;
  p.layer_ids = {0, 2};
  p.shapes = {{.n_head_kv = 2, .d_k = 16, .d_v = 32}, {.n_head_kv = 1, .d_k = 24, .d_v = 16}};
  p.heads = {sample_head(p.shapes[0], p.n_basis, 1.0f), sample_head(p.shapes[0], p.n_basis, 2.0f),
             sample_head(p.shapes[1], p.n_basis, 4.0f)};
  return p;
}

// The same without codes of nib.
inline Profile without_codes(Profile p) {
  p.nib.clear();
  for (HeadProfile& head : p.heads) head.key_nib = head.value_nib = {};
  return p;
}

// A profile that belongs to a model, with made-up contents.
inline Profile profile_for(const ModelInfo& model) {
  Profile p = sample_profile();
  p.model_name = model.name;
  p.model_arch = model.arch;
  p.model_fingerprint = model.fingerprint;
  p.layer_ids.clear();
  p.shapes.clear();
  p.heads.clear();
  for (int il = 0; il < model.n_layer; ++il) {
    const LayerShape& shape = model.layers[static_cast<size_t>(il)];
    if (shape.n_head_kv == 0) continue;
    p.layer_ids.push_back(il);
    p.shapes.push_back(shape);
    for (int h = 0; h < shape.n_head_kv; ++h) {
      p.heads.push_back(sample_head(shape, p.n_basis, static_cast<float>(1 + h)));
    }
  }
  return p;
}

}  // namespace headq::testing
