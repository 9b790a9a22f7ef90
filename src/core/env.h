#pragma once

#include <string>

namespace headq {

// The HEADQ_* environment, read here and nowhere else. Unset and empty are the same: "".
struct Environment {
  std::string isa;       // HEADQ_ISA: a name of core/isa.h; "" picks the best
  std::string kv;        // HEADQ_KV: "K/V"
  std::string kv_layer;  // HEADQ_KV_LAYER: "L:K/V,..."
  std::string profile;   // HEADQ_PROFILE: path
  std::string window;    // HEADQ_WINDOW: tokens
  std::string sinks;     // HEADQ_SINKS: tokens
  std::string plugin;    // HEADQ_PLUGIN: path of libggml-headq.so

  static Environment read();
};

// A decimal integer in [lo, hi]; throws Error(kInvalidArgument) naming what, the text and the range.
int parse_int(const std::string& what, const std::string& text, int lo, int hi);

}  // namespace headq
