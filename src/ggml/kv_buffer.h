#pragma once

#include <ggml-backend-impl.h>

#include <map>
#include <memory>
#include <string>

#include "cache/layer_cache.h"
#include "ggml/policy.h"

namespace headq {

// A ggml buffer of the HEADQ device. Its memory is reserved address space: tensors that are not KV
// caches (attention outputs, copies of states) live there as they are; of KV cache tensors the
// addresses serve as names only, their rows live in LayerCache.
class KvBuffer {
 public:
  enum class Side { kKeys, kValues };

  // A KV cache tensor as llama.cpp allocated it: f16 [n_embd, n_cells, n_streams].
  struct Root {
    int layer = 0;
    Side side = Side::kKeys;
    const char* data = nullptr;
    int n_embd = 0;
    int n_cells = 0;
    int n_streams = 0;

    size_t row_bytes() const { return static_cast<size_t>(n_embd) * sizeof(Half); }
    size_t bytes() const {
      return row_bytes() * static_cast<size_t>(n_cells) * static_cast<size_t>(n_streams);
    }
  };

  // Consecutive rows of a root, cells counted over all streams.
  struct Rows {
    const Root* root = nullptr;
    LayerCache* cache = nullptr;
    int64_t cell = 0;
    size_t n = 0;
  };

  struct Stats {
    CacheBytes sum;
    size_t dense = 0;
    size_t n_tokens = 0;
    size_t profile = 0;  // counted once, however many buffers read it
  };

  static ggml_backend_buffer_t allocate(ggml_backend_buffer_type_t type, size_t size);
  // The KvBuffer that holds a tensor (or the tensor it is a view of), or null.
  static KvBuffer* of(const ggml_tensor* tensor);
  // Whether a tensor is (a view of) a cache in one of the empty buffers that ggml makes of our type
  // while memory is planned and nothing is allocated.
  static bool is_planned_cache(const ggml_tensor* tensor);
  // Sums over the live buffers of a configuration.
  static Stats stats(uint32_t configuration);

  ~KvBuffer();
  KvBuffer(const KvBuffer&) = delete;
  KvBuffer& operator=(const KvBuffer&) = delete;

  // The root a tensor is or views; null for other tensors.
  const Root* root_of(const ggml_tensor* tensor) const;
  // The cache of a root's layer; throws Error when the layer's shape is not known yet.
  LayerCache& cache_of(const Root& root) const;
  // Learns how a layer's rows divide into heads and makes its cache. Throws Error when this shape
  // cannot be served or is not the one known before.
  void set_shape(int layer, const LayerShape& shape);

  // Before an op: threads for what the buffer does itself. Throws Error when the buffer was read in a
  // way that cannot be served (see get()).
  void begin_op(int n_threads);

 private:
  KvBuffer(size_t size, std::shared_ptr<const Policy> policy);

  void register_root(const ggml_tensor* tensor);
  void get_rows(const Rows& rows, Half* out) const;
  void set_rows(const Rows& rows, const Half* in);
  Rows rows_at(const ggml_tensor* tensor, size_t offset, size_t size) const;
  void get(const ggml_tensor* tensor, void* data, size_t offset, size_t size);
  void set(const ggml_tensor* tensor, const void* data, size_t offset, size_t size);
  void fill(const ggml_tensor* tensor, uint8_t value, size_t offset, size_t size);
  bool copy(const ggml_tensor* src, const ggml_tensor* dst);
  void clear(uint8_t value);

  friend struct KvBufferInterface;

  char* base_ = nullptr;
  size_t size_ = 0;
  std::shared_ptr<const Policy> policy_;
  std::map<std::string, Root> roots_;
  DensePool pool_;  // outlives the layers that borrow from it
  std::map<int, std::unique_ptr<LayerCache>> layers_;
  int n_threads_ = 1;
  std::string refusal_;  // why no further op may run
};

}  // namespace headq
