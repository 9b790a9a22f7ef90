#pragma once

// What libggml-headq.so offers beyond the ggml backend interface. Each function is obtained with
// ggml_backend_reg_get_proc_address(reg, "<name>"). Plain C types only: the caller and the plugin
// may be built with different compilers.

#include <stddef.h>
#include <stdint.h>

extern "C" {

// "headq_configure": sets the policy for KV caches created from now on in this process; it replaces
// what HEADQ_KV, HEADQ_KV_LAYER, HEADQ_PROFILE, HEADQ_WINDOW and HEADQ_SINKS said at load time.
// Empty or null strings mean the default (dense, no overrides, no profile). Returns 0, or 1 with one line in error.
struct headq_options {
  const char* kv;        // "K/V"
  const char* kv_layer;  // "L:K/V,..." or ""
  const char* profile;   // path or ""
  int window;
  int sinks;
};
typedef int (*headq_configure_t)(const headq_options* options, char* error, size_t error_size);

// "headq_last_error": why the last buffer allocation, tensor initialisation or graph was refused;
// "" when nothing was. Owned by the plugin, valid until the next refusal.
typedef const char* (*headq_last_error_t)(void);

// "headq_configuration": how many headq_configure calls have succeeded. Caches created from now on
// belong to this number; 0 is the policy of load time.
typedef uint32_t (*headq_configuration_t)(void);

// "headq_get_stats": sums over the live caches that belong to a configuration. Bytes are real
// storage.
struct headq_stats {
  uint64_t n_tokens;         // cells that hold a row, per layer (the largest over the layers)
  uint64_t n_elements;       // key and value elements those cells stand for, over all layers
  uint64_t packed_elements;  // the part of n_elements that lives in packed blocks
  uint64_t packed_bytes;     // codes and their block and token parameters
  uint64_t dense_bytes;      // window, sinks and open blocks, as allocated
  uint64_t meta_bytes;       // per-block bookkeeping
  uint64_t profile_bytes;    // bases, means and tables of its profile, counted once
};
typedef void (*headq_get_stats_t)(uint32_t configuration, headq_stats* stats);

// "headq_set_observer": called once per attention op with the op's inputs, before anything is
// coded; null removes it. Rows are f32. Used to calibrate; works for every model family because it
// sees what attention sees (post-RoPE queries and keys, values).
struct headq_observation {
  int layer;
  int n_rows;      // query rows, equal to the rows written in this graph
  int n_head;      // query heads
  int n_head_kv;   // key/value heads
  int d_k, d_v;    // head_dim of keys and values
  float scale;     // logit scale
  float softcap;   // 0: none
  float max_bias;  // ALiBi, 0: none
  const float* q;  // [n_rows][n_head][d_k]
  const float* k;  // [n_rows][n_head_kv][d_k]
  const float* v;  // [n_rows][n_head_kv][d_v]
  // Additive mask of the written rows against each other: [n_rows][n_rows], 0 or -inf (or the ALiBi
  // distance); rows of older graphs are not shown.
  const float* mask;
};
typedef void (*headq_observer_t)(const headq_observation* observation, void* user);
typedef void (*headq_set_observer_t)(headq_observer_t observer, void* user);
}
