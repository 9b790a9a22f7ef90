#include "bench/f16_attention.h"

#include <ggml-alloc.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <chrono>

#include "bench/packed_attention.h"
#include "core/half.h"
#include "headq/error.h"

namespace headq::bench {
namespace {

using Context = std::unique_ptr<ggml_context, decltype(&ggml_free)>;
using Buffer = std::unique_ptr<ggml_backend_buffer, decltype(&ggml_backend_buffer_free)>;

Context make_context(size_t n_tensors, size_t n_graphs) {
  const size_t size = n_tensors * ggml_tensor_overhead() + n_graphs * ggml_graph_overhead();
  return {ggml_init({.mem_size = size, .mem_buffer = nullptr, .no_alloc = true}), ggml_free};
}

ggml_backend_t cpu_backend() {
  static const ggml_backend_t backend = [] {
    if (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU) == nullptr) ggml_backend_load_all();
    return ggml_backend_init_by_type(GGML_BACKEND_DEVICE_TYPE_CPU, nullptr);
  }();
  if (backend == nullptr) throw Error(ErrorCode::kUnsupported, "ggml has no CPU backend");
  return backend;
}

void set_threads(int n_threads) {
  const ggml_backend_reg_t reg =
      ggml_backend_dev_backend_reg(ggml_backend_get_device(cpu_backend()));
  const auto set = reinterpret_cast<ggml_backend_set_n_threads_t>(
      ggml_backend_reg_get_proc_address(reg, "ggml_backend_set_n_threads"));
  if (set == nullptr) throw Error(ErrorCode::kUnsupported, "ggml's CPU backend sets no threads");
  set(cpu_backend(), n_threads);
}

std::vector<Half> as_halves(const std::vector<float>& rows) {
  std::vector<Half> out;
  out.reserve(rows.size());
  for (float x : rows) out.push_back(float_to_half(x));
  return out;
}

}  // namespace

struct F16Caches::Tensors {
  Context context{nullptr, ggml_free};
  Buffer buffer{nullptr, ggml_backend_buffer_free};
  std::vector<ggml_tensor*> keys, values;  // by layer, [n_tokens][n_head_kv * d]
};

F16Caches::F16Caches(const Workload& text, int n_layers)
    : text_(text), n_layers_(n_layers), tensors_(std::make_unique<Tensors>()) {
  Tensors& t = *tensors_;
  t.context = make_context(static_cast<size_t>(2 * n_layers), 0);
  const auto make = [&](size_t row) {
    return ggml_new_tensor_2d(t.context.get(), GGML_TYPE_F16, static_cast<int64_t>(row),
                              text.n_tokens);
  };
  for (int i = 0; i < n_layers; ++i) {
    t.keys.push_back(make(text.key_row()));
    t.values.push_back(make(text.value_row()));
  }
  t.buffer.reset(ggml_backend_alloc_ctx_tensors(t.context.get(), cpu_backend()));
  const std::vector<Half> k = as_halves(text.keys), v = as_halves(text.values);
  for (int i = 0; i < n_layers; ++i) {
    const size_t il = static_cast<size_t>(i);
    ggml_backend_tensor_set(t.keys[il], k.data(), 0, k.size() * sizeof(Half));
    ggml_backend_tensor_set(t.values[il], v.data(), 0, v.size() * sizeof(Half));
  }
}

F16Caches::~F16Caches() = default;

struct F16Attention::Graphs {
  Context context{nullptr, ggml_free};
  Buffer buffer{nullptr, ggml_backend_buffer_free};
  std::vector<ggml_cgraph*> graphs;  // by layer
  ggml_tensor* out = nullptr;        // of the last run
  std::vector<ggml_tensor*> outs;
};

F16Attention::F16Attention(F16Caches& caches, int group, int n_rows)
    : caches_(caches), graphs_(std::make_unique<Graphs>()) {
  const Workload& text = caches.text();
  const int64_t n_head = group * text.shape.n_head_kv;
  Graphs& g = *graphs_;
  const size_t n_layers = static_cast<size_t>(caches.n_layers());
  g.context = make_context(3 + 8 * n_layers, n_layers);
  ggml_context* const c = g.context.get();
  ggml_tensor* const q = ggml_new_tensor_3d(c, GGML_TYPE_F32, text.shape.d_k, n_head, n_rows);
  ggml_tensor* const mask = ggml_new_tensor_2d(c, GGML_TYPE_F16, text.n_tokens, n_rows);
  // [d][n_tokens][n_head_kv], a view of rows that lie as llama.cpp lays them.
  const auto side = [&](ggml_tensor* rows, int d) {
    const size_t head = ggml_row_size(GGML_TYPE_F16, d);
    return ggml_permute(
        c, ggml_view_3d(c, rows, d, text.shape.n_head_kv, text.n_tokens, head, rows->nb[1], 0), 0,
        2, 1, 3);
  };
  ggml_tensor* const queries = ggml_permute(c, q, 0, 2, 1, 3);
  for (size_t il = 0; il < n_layers; ++il) {
    ggml_tensor* const out = ggml_flash_attn_ext(
        c, queries, side(caches.tensors_->keys[il], text.shape.d_k),
        side(caches.tensors_->values[il], text.shape.d_v), mask, text.scale(), 0.0f, 0.0f);
    ggml_prec_set_acc(out, GGML_PREC_F32);
    g.outs.push_back(out);
    g.graphs.push_back(ggml_new_graph(c));
    ggml_build_forward_expand(g.graphs.back(), out);
  }
  g.buffer.reset(ggml_backend_alloc_ctx_tensors(c, cpu_backend()));
  const std::vector<float> rows = text.queries(n_rows, group, kQuerySeed);
  const std::vector<Half> halves = causal_mask(n_rows, text.n_tokens);
  ggml_backend_tensor_set(q, rows.data(), 0, rows.size() * sizeof(float));
  ggml_backend_tensor_set(mask, halves.data(), 0, halves.size() * sizeof(Half));
}

F16Attention::~F16Attention() = default;

double F16Attention::run(int layer, int n_threads) {
  set_threads(n_threads);
  const size_t il = static_cast<size_t>(layer);
  const auto start = std::chrono::steady_clock::now();
  const ggml_status status = ggml_backend_graph_compute(cpu_backend(), graphs_->graphs[il]);
  const auto end = std::chrono::steady_clock::now();
  if (status != GGML_STATUS_SUCCESS) {
    throw Error(ErrorCode::kUnsupported, "ggml's flash attention failed");
  }
  graphs_->out = graphs_->outs[il];
  return std::chrono::duration<double>(end - start).count();
}

std::vector<float> F16Attention::output() const {
  std::vector<float> out(static_cast<size_t>(ggml_nelements(graphs_->out)));
  ggml_backend_tensor_get(graphs_->out, out.data(), 0, out.size() * sizeof(float));
  return out;
}

}  // namespace headq::bench
