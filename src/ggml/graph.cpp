#include "ggml/graph.h"

#include <fmt/format.h>
#include <ggml-impl.h>

#include <cstring>

#include "headq/error.h"

namespace headq {
namespace {

float float_param(const ggml_tensor* op, int index) {
  float value;
  std::memcpy(&value, op->op_params + index, sizeof(value));
  return value;
}

const KvBuffer::Root* cache_root(const ggml_tensor* tensor) {
  const KvBuffer* buffer = KvBuffer::of(tensor);
  return buffer != nullptr ? buffer->root_of(tensor) : nullptr;
}

template <typename Pred>
bool any_operand(const ggml_tensor* op, const Pred& pred) {
  if (pred(op)) return true;
  for (const ggml_tensor* src : op->src) {
    if (src != nullptr && pred(src)) return true;
  }
  return false;
}

[[noreturn]] void unsupported(const std::string& why) { throw Error(ErrorCode::kUnsupported, why); }

// FLASH_ATTN_EXT: q f32 [d_k, rows, heads, streams], k and v f16 [d, n_kv, KV heads, streams] views
// of one layer's caches, mask f16 [n_kv, >= rows, 1, streams], sinks f32 [heads].
void check_attention(const ggml_tensor* op) {
  const ggml_tensor *q = op->src[0], *k = op->src[1], *v = op->src[2], *mask = op->src[3];
  const KvBuffer::Root* k_root = cache_root(k);
  const KvBuffer::Root* v_root = cache_root(v);
  if (k_root == nullptr || v_root == nullptr || k_root->layer != v_root->layer ||
      k_root->side != KvBuffer::Side::kKeys || v_root->side != KvBuffer::Side::kValues) {
    unsupported(fmt::format("attention reads '{}' and '{}', which are not the keys and values of "
                            "one layer", k->name, v->name));
  }
  if (q->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float)) unsupported("queries are not f32 rows");
  if (mask != nullptr && (mask->type != GGML_TYPE_F16 || mask->ne[2] != 1)) {
    unsupported("the attention mask is not f16 of one plane a stream");
  }
  if (q->ne[2] % k->ne[2] != 0 || k->ne[2] != v->ne[2]) {
    unsupported(fmt::format("{} query heads, {} key heads, {} value heads", q->ne[2], k->ne[2],
                            v->ne[2]));
  }
  const LayerShape shape{.n_head_kv = static_cast<int>(k->ne[2]),
                         .d_k = static_cast<int>(k->ne[0]),
                         .d_v = static_cast<int>(v->ne[0])};
  KvBuffer::of(k)->set_shape(k_root->layer, shape);
}

void check_set_rows(const ggml_tensor* op) {
  const KvBuffer::Root* root = cache_root(op);
  if (op->ne[0] != root->n_embd) {
    unsupported("values are stored transposed because flash attention is off; add -fa on");
  }
  const ggml_tensor *rows = op->src[0], *cells = op->src[1];
  if (rows->type != GGML_TYPE_F32 || rows->nb[0] != sizeof(float) || rows->ne[2] != 1) {
    unsupported(fmt::format("rows for '{}' are not f32 rows", op->name));
  }
  if (cells->type != GGML_TYPE_I64 && cells->type != GGML_TYPE_I32) {
    unsupported(fmt::format("cell numbers have type {}", ggml_type_name(cells->type)));
  }
}

void check_cache_op(const ggml_tensor* op) {
  switch (op->op) {
    case GGML_OP_FLASH_ATTN_EXT:
      return check_attention(op);
    case GGML_OP_SET_ROWS:
      return check_set_rows(op);
    case GGML_OP_ROPE: {
      const KvBuffer::Root* root = cache_root(op);
      if (root == nullptr || root->side != KvBuffer::Side::kKeys) {
        unsupported("ROPE of a cache is supported on keys, in place");
      }
      return;
    }
    case GGML_OP_MUL_MAT:
      unsupported("attention without flash attention cannot read a packed cache; add -fa on");
    default:
      unsupported(fmt::format("op {} on '{}' cannot be run on a packed cache", ggml_op_name(op->op),
                              op->src[0] != nullptr ? op->src[0]->name : op->name));
  }
}

bool is_view_op(const ggml_tensor* op) {
  switch (op->op) {
    case GGML_OP_NONE:
    case GGML_OP_VIEW:
    case GGML_OP_RESHAPE:
    case GGML_OP_PERMUTE:
    case GGML_OP_TRANSPOSE:
      return true;
    default:
      return false;
  }
}

int64_t cell_at(const ggml_tensor* cells, int64_t i) {
  const char* at = static_cast<const char*>(cells->data) + static_cast<size_t>(i) * cells->nb[0];
  if (cells->type == GGML_TYPE_I32) {
    int32_t cell;
    std::memcpy(&cell, at, sizeof(cell));
    return cell;
  }
  int64_t cell;
  std::memcpy(&cell, at, sizeof(cell));
  return cell;
}

}  // namespace

bool supports_op(const ggml_tensor* op) {
  if (is_view_op(op)) return true;
  // While llama.cpp plans memory, caches stand in empty buffers of our type.
  if (any_operand(op, KvBuffer::is_planned_cache)) return true;
  if (!any_operand(op, cache_root)) return false;
  try {
    check_cache_op(op);
  } catch (const std::exception& e) {
    PluginState::instance().refuse_next_allocation(e.what());
  }
  // Also when refused: on another backend the op would work on copies of the cache, slowly.
  return true;
}

GraphRunner::GraphRunner() : attention_(PluginState::instance().kernels()) {}

GraphRunner::~GraphRunner() {
  if (cpu_ != nullptr) ggml_backend_free(cpu_);
}

ggml_status GraphRunner::compute(const ggml_cgraph* graph) {
  for (int i = 0; i < graph->n_nodes; ++i) {
    try {
      run(graph->nodes[i]);
    } catch (const std::exception& e) {
      PluginState::instance().refuse(e.what());
      return GGML_STATUS_FAILED;
    }
  }
  return GGML_STATUS_SUCCESS;
}

void GraphRunner::run(const ggml_tensor* op) {
  if (is_view_op(op) || ggml_is_empty(op)) return;
  check_cache_op(op);
  KvBuffer::of(op->op == GGML_OP_FLASH_ATTN_EXT ? op->src[1] : op)->begin_op(n_threads_);
  if (op->op == GGML_OP_SET_ROWS) set_rows(op);
  if (op->op == GGML_OP_FLASH_ATTN_EXT) attend(op);
  if (op->op == GGML_OP_ROPE) rope(op);
}

void GraphRunner::set_rows(const ggml_tensor* op) {
  const ggml_tensor *rows = op->src[0], *cells = op->src[1];
  const KvBuffer::Root& root = *cache_root(op);
  LayerCache& cache = KvBuffer::of(op)->cache_of(root);
  cells_.resize(static_cast<size_t>(rows->ne[1]));
  const int64_t n_cells = static_cast<int64_t>(root.n_cells) * root.n_streams;
  for (size_t i = 0; i < cells_.size(); ++i) {
    cells_[i] = cell_at(cells, static_cast<int64_t>(i));
    if (cells_[i] < 0 || cells_[i] >= n_cells) {
      unsupported(fmt::format("cell {} is not in 0..{}", cells_[i], n_cells - 1));
    }
  }
  const float* data = static_cast<const float*>(rows->data);
  const size_t stride = rows->nb[1] / sizeof(float);
  if (root.side == KvBuffer::Side::kKeys) {
    cache.write_keys(cells_, data, stride);
  } else {
    cache.write_values(cells_, data, stride);
  }
  if (!PluginState::instance().has_observer()) return;
  Written& written = written_[root.layer];
  std::vector<float>& copy = root.side == KvBuffer::Side::kKeys ? written.k : written.v;
  copy.clear();
  for (size_t i = 0; i < cells_.size(); ++i) {
    copy.insert(copy.end(), data + i * stride, data + i * stride + root.n_embd);
  }
}

void GraphRunner::attend(const ggml_tensor* op) {
  const ggml_tensor *q = op->src[0], *k = op->src[1], *mask = op->src[3], *sinks = op->src[4];
  const KvBuffer::Root& root = *cache_root(k);
  LayerCache& cache = KvBuffer::of(k)->cache_of(root);
  const size_t first_row =
      static_cast<size_t>(static_cast<const char*>(k->data) - root.data) / root.row_bytes();

  AttentionInputs in;
  in.n_rows = static_cast<int>(q->ne[1]);
  in.n_streams = static_cast<int>(q->ne[3]);
  in.first_stream = static_cast<int>(first_row) / root.n_cells;
  in.n_head = static_cast<int>(q->ne[2]);
  in.n_kv = static_cast<int>(k->ne[1]);
  in.scale = float_param(op, 0);
  in.max_bias = float_param(op, 1);
  in.softcap = float_param(op, 2);
  in.q = static_cast<const float*>(q->data);
  in.q_row = q->nb[1] / sizeof(float);
  in.q_head = q->nb[2] / sizeof(float);
  in.q_stream = q->nb[3] / sizeof(float);
  if (mask != nullptr) {
    in.mask = static_cast<const Half*>(mask->data);
    in.mask_row = mask->nb[1] / sizeof(Half);
    in.mask_stream = mask->ne[3] == 1 ? 0 : mask->nb[3] / sizeof(Half);
  }
  if (sinks != nullptr) in.sinks = static_cast<const float*>(sinks->data);
  in.out = static_cast<float*>(op->data);
  if (PluginState::instance().has_observer()) observe(op, cache);
  attention_.run(cache, in, n_threads_);
}

void GraphRunner::observe(const ggml_tensor* op, const LayerCache& cache) const {
  const ggml_tensor *q = op->src[0], *mask = op->src[3];
  const auto it = written_.find(cache.layer());
  if (it == written_.end() || q->ne[3] != 1) return;
  const size_t n_rows = static_cast<size_t>(q->ne[1]);
  const size_t n_head = static_cast<size_t>(q->ne[2]);
  const size_t d = static_cast<size_t>(q->ne[0]);
  std::vector<float> queries(n_rows * n_head * d);
  for (size_t row = 0; row < n_rows; ++row) {
    for (size_t head = 0; head < n_head; ++head) {
      const char* from = static_cast<const char*>(q->data) + row * q->nb[1] + head * q->nb[2];
      std::memcpy(queries.data() + (row * n_head + head) * d, from, d * sizeof(float));
    }
  }
  std::vector<float> own_mask(n_rows * n_rows, 0.0f);
  for (size_t row = 0; mask != nullptr && row < n_rows; ++row) {
    const Half* from = reinterpret_cast<const Half*>(static_cast<const char*>(mask->data) +
                                                     row * mask->nb[1]);
    for (size_t other = 0; other < n_rows; ++other) {
      const int64_t cell = cache.written()[other].cell % cache.n_cells();
      own_mask[row * n_rows + other] = half_to_float(from[cell]);
    }
  }
  const headq_observation observation = {
      .layer = cache.layer(),
      .n_rows = static_cast<int>(n_rows),
      .n_head = static_cast<int>(n_head),
      .n_head_kv = cache.shape().n_head_kv,
      .d_k = cache.shape().d_k,
      .d_v = cache.shape().d_v,
      .scale = float_param(op, 0),
      .softcap = float_param(op, 2),
      .max_bias = float_param(op, 1),
      .q = queries.data(),
      .k = it->second.k.data(),
      .v = it->second.v.data(),
      .mask = own_mask.data(),
  };
  PluginState::instance().observe(observation);
}

// Context shift: rotates keys by their cells' shifts. The rotation itself is ggml's own op, run on
// decoded rows, so that every RoPE variant is the model's.
void GraphRunner::rope(const ggml_tensor* op) {
  const ggml_tensor* view = op->src[0];
  const KvBuffer::Root& root = *cache_root(op);
  LayerCache& cache = KvBuffer::of(op)->cache_of(root);
  const int32_t* shift = static_cast<const int32_t*>(op->src[1]->data);
  const size_t first_channel =
      static_cast<size_t>(static_cast<const char*>(view->data) - root.data) / sizeof(Half);
  if (cpu_ == nullptr) {
    cpu_ = ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
    if (cpu_ == nullptr) unsupported("there is no CPU backend to rotate keys with");
  }
  const size_t row_floats = static_cast<size_t>(root.n_embd);
  const auto rotate = [&](std::span<const int64_t> cells, float* rows) {
    const size_t row_bytes = row_floats * sizeof(float);
    const size_t memory = cells.size() * (row_bytes + sizeof(int32_t)) +
                          8 * ggml_tensor_overhead() + ggml_graph_overhead() + 4096;
    ggml_context* ctx = ggml_init({.mem_size = memory, .mem_buffer = nullptr, .no_alloc = false});
    if (ctx == nullptr) throw Error(ErrorCode::kIo, "no memory to rotate keys");
    const int64_t n = static_cast<int64_t>(cells.size());
    ggml_tensor* data = ggml_new_tensor_2d(ctx, GGML_TYPE_F32, root.n_embd, n);
    std::memcpy(data->data, rows, cells.size() * row_bytes);
    ggml_tensor* positions = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, n);
    for (size_t i = 0; i < cells.size(); ++i) {
      static_cast<int32_t*>(positions->data)[i] = shift[cells[i]];
    }
    ggml_tensor* part = ggml_view_3d(ctx, data, view->ne[0], view->ne[1], n,
                                     view->nb[1] / sizeof(Half) * sizeof(float), row_bytes,
                                     first_channel * sizeof(float));
    ggml_tensor* rotated = ggml_rope_ext_inplace(ctx, part, positions, op->src[2],
                                                 static_cast<int>(view->ne[0]), 0, 0, 10000.0f,
                                                 1.0f, 0.0f, 1.0f, 0.0f, 0.0f);
    std::memcpy(rotated->op_params, op->op_params, sizeof(op->op_params));
    ggml_cgraph* graph = ggml_new_graph(ctx);
    ggml_build_forward_expand(graph, rotated);
    const ggml_status status = ggml_backend_graph_compute(cpu_, graph);
    std::memcpy(rows, data->data, cells.size() * row_bytes);
    ggml_free(ctx);
    if (status != GGML_STATUS_SUCCESS) throw Error(ErrorCode::kIo, "rotating keys failed");
  };
  cache.rewrite_keys([shift](int64_t cell) { return shift[cell] != 0; }, rotate, n_threads_);
}

}  // namespace headq
