#include "ggml/kv_buffer.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <charconv>
#include <cstring>
#include <vector>

#include "headq/error.h"

namespace headq {
namespace {

std::vector<KvBuffer*>& live_buffers() {
  static std::vector<KvBuffer*> buffers;
  return buffers;
}

const ggml_tensor* root_tensor(const ggml_tensor* tensor) {
  return tensor->view_src != nullptr ? tensor->view_src : tensor;
}

KvBuffer* context(ggml_backend_buffer_t buffer) { return static_cast<KvBuffer*>(buffer->context); }

// Layer number behind a prefix, or -1.
int layer_number(std::string_view name, std::string_view prefix) {
  if (!name.starts_with(prefix)) return -1;
  name.remove_prefix(prefix.size());
  int layer = -1;
  const auto [ptr, ec] = std::from_chars(name.data(), name.data() + name.size(), layer);
  return ec == std::errc() && ptr == name.data() + name.size() ? layer : -1;
}

}  // namespace

// The C functions that ggml calls; nothing is thrown through them.
struct KvBufferInterface {
  template <typename Fn>
  static bool guarded(const Fn& fn) {
    try {
      fn();
      return true;
    } catch (const std::exception& e) {
      PluginState::instance().refuse(e.what());
      return false;
    }
  }

  static void free_buffer(ggml_backend_buffer_t buffer) { delete context(buffer); }
  static void* get_base(ggml_backend_buffer_t buffer) { return context(buffer)->base_; }
  static ggml_status init_tensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor) {
    const bool ok = guarded([&] { context(buffer)->register_root(tensor); });
    return ok ? GGML_STATUS_SUCCESS : GGML_STATUS_FAILED;
  }
  static void memset_tensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor, uint8_t value,
                            size_t offset, size_t size) {
    guarded([&] { context(buffer)->fill(tensor, value, offset, size); });
  }
  static void set_tensor(ggml_backend_buffer_t buffer, ggml_tensor* tensor, const void* data,
                         size_t offset, size_t size) {
    guarded([&] { context(buffer)->set(tensor, data, offset, size); });
  }
  static void get_tensor(ggml_backend_buffer_t buffer, const ggml_tensor* tensor, void* data,
                         size_t offset, size_t size) {
    guarded([&] { context(buffer)->get(tensor, data, offset, size); });
  }
  static bool cpy_tensor(ggml_backend_buffer_t buffer, const ggml_tensor* src, ggml_tensor* dst) {
    bool done = false;
    guarded([&] { done = context(buffer)->copy(src, dst); });
    return done;
  }
  static void clear(ggml_backend_buffer_t buffer, uint8_t value) {
    guarded([&] { context(buffer)->clear(value); });
  }
};

ggml_backend_buffer_t KvBuffer::allocate(ggml_backend_buffer_type_t type, size_t size) {
  if (PluginState::instance().take_pending_refusal()) return nullptr;
  std::unique_ptr<KvBuffer> buffer;
  const bool ok = KvBufferInterface::guarded(
      [&] { buffer.reset(new KvBuffer(size, PluginState::instance().policy())); });
  if (!ok) return nullptr;
  const ggml_backend_buffer_i interface = {
      .free_buffer = KvBufferInterface::free_buffer,
      .get_base = KvBufferInterface::get_base,
      .init_tensor = KvBufferInterface::init_tensor,
      .memset_tensor = KvBufferInterface::memset_tensor,
      .set_tensor = KvBufferInterface::set_tensor,
      .get_tensor = KvBufferInterface::get_tensor,
      .set_tensor_2d = nullptr,
      .get_tensor_2d = nullptr,
      .cpy_tensor = KvBufferInterface::cpy_tensor,
      .clear = KvBufferInterface::clear,
      .reset = nullptr,
  };
  return ggml_backend_buffer_init(type, interface, buffer.release(), size);
}

KvBuffer* KvBuffer::of(const ggml_tensor* tensor) {
  const ggml_backend_buffer_t buffer = root_tensor(tensor)->buffer;
  if (buffer == nullptr || buffer->iface.get_base != KvBufferInterface::get_base) return nullptr;
  return context(buffer);
}

bool KvBuffer::is_planned_cache(const ggml_tensor* tensor) {
  const ggml_tensor* root = root_tensor(tensor);
  return root->buffer != nullptr && root->buffer->buft->iface.alloc_buffer == KvBuffer::allocate &&
         KvBuffer::of(tensor) == nullptr && std::string_view(root->name).starts_with("cache_");
}

KvBuffer::Stats KvBuffer::stats(uint32_t configuration) {
  Stats stats;
  for (const KvBuffer* buffer : live_buffers()) {
    if (buffer->policy_->configuration != configuration) continue;
    for (const auto& [il, cache] : buffer->layers_) {
      const CacheBytes bytes = cache->bytes();
      stats.sum.elements += bytes.elements;
      stats.sum.packed_elements += bytes.packed_elements;
      stats.sum.packed += bytes.packed;
      stats.sum.meta += bytes.meta;
      stats.n_tokens = std::max(stats.n_tokens, bytes.n_cells);
    }
    stats.dense += buffer->pool_.bytes();
    if (buffer->policy_->profile != nullptr) stats.profile = buffer->policy_->profile->payload_bytes();
  }
  return stats;
}

KvBuffer::KvBuffer(size_t size, std::shared_ptr<const Policy> policy)
    : size_(std::max<size_t>(size, 1)), policy_(std::move(policy)) {
  void* base = mmap(nullptr, size_, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) {
    throw Error(ErrorCode::kIo,
                fmt::format("cannot reserve {} bytes of address space: {}", size_, strerror(errno)));
  }
  base_ = static_cast<char*>(base);
  live_buffers().push_back(this);
}

KvBuffer::~KvBuffer() {
  std::erase(live_buffers(), this);
  munmap(base_, size_);
}

// Called for every tensor that is placed in the buffer.
void KvBuffer::register_root(const ggml_tensor* tensor) {
  const std::string_view name = tensor->name;
  if (tensor->view_src != nullptr || !name.starts_with("cache_")) return;
  Root root;
  root.layer = layer_number(name, "cache_k_l");
  if (root.layer < 0) {
    root.layer = layer_number(name, "cache_v_l");
    root.side = Side::kValues;
  }
  if (root.layer < 0) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cache tensor '{}': only key and value caches of attention layers can be "
                            "served, not recurrent states or indexers", name));
  }
  if (tensor->type != GGML_TYPE_F16) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cache tensor '{}' has type {}; leave the cache types at f16, HEADQ_KV "
                            "says how rows are stored", name, ggml_type_name(tensor->type)));
  }
  root.data = static_cast<const char*>(tensor->data);
  root.n_embd = static_cast<int>(tensor->ne[0]);
  root.n_cells = static_cast<int>(tensor->ne[1]);
  root.n_streams = static_cast<int>(tensor->ne[2]);
  roots_[tensor->name] = root;
}

const KvBuffer::Root* KvBuffer::root_of(const ggml_tensor* tensor) const {
  const auto it = roots_.find(root_tensor(tensor)->name);
  return it != roots_.end() ? &it->second : nullptr;
}

LayerCache& KvBuffer::cache_of(const Root& root) const {
  const auto it = layers_.find(root.layer);
  if (it == layers_.end()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("layer {}: its cache is used before any attention op", root.layer));
  }
  return *it->second;
}

void KvBuffer::set_shape(int layer, const LayerShape& shape) {
  const auto it = layers_.find(layer);
  if (it != layers_.end()) {
    if (it->second->shape() == shape) return;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("layer {}: attention reads {} heads of {}/{} channels, before it were {} "
                            "of {}/{}", layer, shape.n_head_kv, shape.d_k, shape.d_v,
                            it->second->shape().n_head_kv, it->second->shape().d_k,
                            it->second->shape().d_v));
  }
  const auto k = roots_.find(fmt::format("cache_k_l{}", layer));
  const auto v = roots_.find(fmt::format("cache_v_l{}", layer));
  if (k == roots_.end() || v == roots_.end()) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("layer {}: it has no {} cache of its own (multi-head latent attention "
                            "cannot be served)", layer, k == roots_.end() ? "key" : "value"));
  }
  if (k->second.n_embd != shape.n_head_kv * shape.d_k ||
      v->second.n_embd != shape.n_head_kv * shape.d_v) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("layer {}: {} heads of {}/{} channels do not fill cache rows of {}/{}",
                            layer, shape.n_head_kv, shape.d_k, shape.d_v, k->second.n_embd,
                            v->second.n_embd));
  }
  layers_[layer] =
      std::make_unique<LayerCache>(layer, shape, policy_->spec, policy_->profile.get(),
                                   k->second.n_cells, k->second.n_streams, pool_);
}

// The rows that bytes [offset, offset + size) of a cache tensor touch.
KvBuffer::Rows KvBuffer::rows_at(const ggml_tensor* tensor, size_t offset, size_t size) const {
  Rows rows;
  rows.root = root_of(tensor);
  if (rows.root == nullptr) return rows;
  rows.cache = &cache_of(*rows.root);
  const size_t begin =
      static_cast<size_t>(static_cast<const char*>(tensor->data) - rows.root->data) + offset;
  const size_t row_bytes = rows.root->row_bytes();
  rows.cell = static_cast<int64_t>(begin / row_bytes);
  rows.n = (begin + size + row_bytes - 1) / row_bytes - begin / row_bytes;
  return rows;
}

void KvBuffer::get_rows(const Rows& rows, Half* out) const {
  if (rows.root->side == Side::kKeys) {
    rows.cache->get_keys(rows.cell, rows.n, out);
  } else {
    rows.cache->get_values(rows.cell, rows.n, out);
  }
}

void KvBuffer::set_rows(const Rows& rows, const Half* in) {
  if (rows.root->side == Side::kKeys) {
    rows.cache->set_keys(rows.cell, rows.n, in, n_threads_);
  } else {
    rows.cache->set_values(rows.cell, rows.n, in, n_threads_);
  }
}

// Byte of the first touched row at which a range begins.
static size_t head_bytes(const KvBuffer::Rows& rows, const ggml_tensor* tensor, size_t offset) {
  const size_t begin =
      static_cast<size_t>(static_cast<const char*>(tensor->data) - rows.root->data) + offset;
  return begin % rows.root->row_bytes();
}

void KvBuffer::begin_op(int n_threads) {
  n_threads_ = n_threads;
  if (!refusal_.empty()) throw Error(ErrorCode::kUnsupported, refusal_);
}

// States and sequences are read through plain views. A permuted one means that the scheduler copies
// the cache to run attention elsewhere, as it does for layers without rows of their own: slow, and
// blind to what is packed. That read gives NaN, and the buffer serves nothing from then on.
void KvBuffer::get(const ggml_tensor* tensor, void* data, size_t offset, size_t size) {
  if (tensor->op == GGML_OP_PERMUTE) {
    refusal_ = fmt::format("'{}' is read by another device; models whose layers share a KV cache "
                           "cannot be served", root_tensor(tensor)->name);
    std::memset(data, 0xff, size);
    throw Error(ErrorCode::kUnsupported, refusal_);
  }
  const Rows rows = rows_at(tensor, offset, size);
  if (rows.root == nullptr) {
    std::memcpy(data, static_cast<const char*>(tensor->data) + offset, size);
    return;
  }
  std::vector<Half> buffer(rows.n * static_cast<size_t>(rows.root->n_embd));
  get_rows(rows, buffer.data());
  const char* from = reinterpret_cast<const char*>(buffer.data());
  std::memcpy(data, from + head_bytes(rows, tensor, offset), size);
}

void KvBuffer::set(const ggml_tensor* tensor, const void* data, size_t offset, size_t size) {
  const Rows rows = rows_at(tensor, offset, size);
  if (rows.root == nullptr) {
    std::memcpy(static_cast<char*>(tensor->data) + offset, data, size);
    return;
  }
  std::vector<Half> buffer(rows.n * static_cast<size_t>(rows.root->n_embd));
  const size_t head = head_bytes(rows, tensor, offset);
  if (head != 0 || size != rows.n * rows.root->row_bytes()) get_rows(rows, buffer.data());
  std::memcpy(reinterpret_cast<char*>(buffer.data()) + head, data, size);
  set_rows(rows, buffer.data());
}

void KvBuffer::fill(const ggml_tensor* tensor, uint8_t value, size_t offset, size_t size) {
  const Rows rows = rows_at(tensor, offset, size);
  if (rows.root == nullptr) {
    std::memset(static_cast<char*>(tensor->data) + offset, value, size);
  } else if (value == 0 && size == rows.n * rows.root->row_bytes()) {
    if (rows.root->side == Side::kKeys) {
      rows.cache->erase_keys(rows.cell, rows.n);
    } else {
      rows.cache->erase_values(rows.cell, rows.n);
    }
  } else {
    const std::vector<uint8_t> bytes(size, value);
    set(tensor, bytes.data(), offset, size);
  }
}

// Copies one whole stream onto another without coding it anew; false: ggml copies through f16 rows.
bool KvBuffer::copy(const ggml_tensor* src, const ggml_tensor* dst) {
  const KvBuffer* source = KvBuffer::of(src);
  if (source == nullptr || source->root_of(src) == nullptr || root_of(dst) == nullptr) return false;
  const Rows from = source->rows_at(src, 0, ggml_nbytes(src));
  const Rows to = rows_at(dst, 0, ggml_nbytes(dst));
  const auto is_stream = [](const Rows& rows) {
    return rows.n == static_cast<size_t>(rows.root->n_cells) && rows.cell % rows.root->n_cells == 0;
  };
  const bool alike = from.root->layer == to.root->layer && from.root->side == to.root->side &&
                     from.root->n_cells == to.root->n_cells && source->policy_ == policy_;
  if (!alike || !is_stream(from) || !is_stream(to)) return false;
  const int from_stream = static_cast<int>(from.cell / from.root->n_cells);
  const int to_stream = static_cast<int>(to.cell / to.root->n_cells);
  if (from.root->side == Side::kKeys) {
    to.cache->copy_keys(*from.cache, from_stream, to_stream);
  } else {
    to.cache->copy_values(*from.cache, from_stream, to_stream);
  }
  return true;
}

void KvBuffer::clear(uint8_t value) {
  for (auto& [il, cache] : layers_) cache->clear();
  if (roots_.empty()) std::memset(base_, value, size_);
}

}  // namespace headq
