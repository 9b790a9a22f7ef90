#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headq/profile.h"

namespace headq {

// What HeadQ needs to know of a model file, read from its GGUF metadata and a sample of its weights.
struct ModelInfo {
  std::string arch;
  std::string name;
  int n_layer = 0;
  int n_ctx_train = 0;
  int n_swa = 0;                   // sliding window, 0: none stated
  std::vector<LayerShape> layers;  // [n_layer]; all zero for a layer without a cache of its own
  bool is_mla = false;             // multi-head latent attention: no value cache
  bool is_recurrent = false;       // has state-space or recurrent layers
  bool is_causal = true;           // false: an encoder, which has no cache
  bool has_score_bias = false;     // learned bias on scores, which flash attention cannot add

  // Hex SHA-256 over the architecture's metadata, the names, types and shapes of all tensors, and
  // the first 4 KiB of each tensor's data (docs/format.md). A fine-tune or another quantization of
  // the same model has another one; a renamed or re-split file has the same.
  std::string fingerprint;

  // path: a model, or the first file of a split one, whose other files must lie beside it. Reads
  // the metadata and at most 4 KiB a tensor. Throws Error: kIo, kCorrupt, kUnsupported (no
  // attention metadata).
  static ModelInfo load(const std::string& path);

  // Empty when HeadQ can serve this model's cache, else one line that says why not.
  std::string why_unsupported() const;

  // Empty when the profile was made for this model, else one line that says what differs.
  std::string why_mismatch(const Profile& profile) const;
};

}  // namespace headq
