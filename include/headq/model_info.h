#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "headq/profile.h"

namespace headq {

// What HeadQ needs to know of a model file, read from GGUF metadata alone.
struct ModelInfo {
  std::string arch;
  std::string name;
  int n_layer = 0;
  int n_ctx_train = 0;
  int n_swa = 0;                   // sliding window, 0: none
  std::vector<LayerShape> layers;  // [n_layer]
  bool is_mla = false;             // multi-head latent attention: no value cache
  bool is_recurrent = false;       // has state-space or recurrent layers
  std::string fingerprint;         // hex SHA-256 over metadata that fixes the KV geometry and over
                                   // tensor names, shapes and types

  // Throws Error: kIo, kCorrupt, kUnsupported (no attention metadata).
  static ModelInfo load(const std::string& path);

  // Empty when HeadQ can serve this model's cache, else one line that says why not.
  std::string why_unsupported() const;
};

}  // namespace headq
