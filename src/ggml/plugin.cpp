// libggml-headq.so: the HEADQ device for llama.cpp. It has no weights and no matrix products; it
// holds KV caches and runs the ops that write and read them. See docs/architecture.md.

#include <ggml-backend-impl.h>
#include <ggml-impl.h>
#include <sys/sysinfo.h>

#include <cstring>
#include <string>

#include "ggml/graph.h"
#include "ggml/kv_buffer.h"
#include "ggml/plugin_api.h"
#include "ggml/policy.h"
#include "headq/error.h"

namespace headq {
namespace {

constexpr size_t kAlignment = 64;

// --- buffer type

ggml_backend_buffer_type* buffer_type();
ggml_backend_device* device();
ggml_backend_reg* registry();

const char* buffer_type_name(ggml_backend_buffer_type_t) { return "HEADQ"; }
size_t buffer_type_alignment(ggml_backend_buffer_type_t) { return kAlignment; }
bool buffer_type_is_host(ggml_backend_buffer_type_t) { return false; }

ggml_backend_buffer_type* buffer_type() {
  static ggml_backend_buffer_type type = {
      .iface = {.get_name = buffer_type_name,
                .alloc_buffer = KvBuffer::allocate,
                .get_alignment = buffer_type_alignment,
                .get_max_size = nullptr,
                .get_alloc_size = nullptr,
                .is_host = buffer_type_is_host},
      .device = device(),
      .context = nullptr,
  };
  return &type;
}

// --- backend

GraphRunner* runner(ggml_backend_t backend) { return static_cast<GraphRunner*>(backend->context); }

const char* backend_name(ggml_backend_t) { return "HEADQ"; }

void backend_free(ggml_backend_t backend) {
  delete runner(backend);
  delete backend;
}

ggml_status backend_compute(ggml_backend_t backend, ggml_cgraph* graph) {
  return runner(backend)->compute(graph);
}

ggml_backend_t backend_new(ggml_backend_dev_t dev, const char*) {
  static ggml_guid guid = {0x48, 0x65, 0x61, 0x64, 0x51, 0x00, 0x4b, 0x56,
                           0x63, 0x61, 0x63, 0x68, 0x65, 0x00, 0x00, 0x01};
  ggml_backend_i interface = {};
  interface.get_name = backend_name;
  interface.free = backend_free;
  interface.graph_compute = backend_compute;
  return new ggml_backend{
      .guid = &guid, .iface = interface, .device = dev, .context = new GraphRunner()};
}

void backend_set_n_threads(ggml_backend_t backend, int n_threads) {
  runner(backend)->set_n_threads(n_threads);
}

// --- device

const char* device_name(ggml_backend_dev_t) { return "HEADQ0"; }
const char* device_description(ggml_backend_dev_t) { return "HeadQ packed KV cache"; }

void device_memory(ggml_backend_dev_t, size_t* free, size_t* total) {
  struct sysinfo info = {};
  sysinfo(&info);
  *free = static_cast<size_t>(info.freeram) * info.mem_unit;
  *total = static_cast<size_t>(info.totalram) * info.mem_unit;
}

// A GPU is what --device and -ngl give layers, and with them their caches, to.
enum ggml_backend_dev_type device_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

void device_props(ggml_backend_dev_t dev, ggml_backend_dev_props* props) {
  *props = {};
  props->name = device_name(dev);
  props->description = device_description(dev);
  props->type = device_type(dev);
  device_memory(dev, &props->memory_free, &props->memory_total);
  props->caps.mmap_support = true;
}

ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t) { return buffer_type(); }

bool device_supports_op(ggml_backend_dev_t, const ggml_tensor* op) { return supports_op(op); }

bool device_supports_buft(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
  return type == buffer_type() || ggml_backend_buft_is_host(type);
}

ggml_backend_device* device() {
  static ggml_backend_device instance = {
      .iface = {.get_name = device_name,
                .get_description = device_description,
                .get_memory = device_memory,
                .get_type = device_type,
                .get_props = device_props,
                .init_backend = backend_new,
                .get_buffer_type = device_buffer_type,
                .get_host_buffer_type = nullptr,
                .buffer_from_host_ptr = nullptr,
                .supports_op = device_supports_op,
                .supports_buft = device_supports_buft,
                .offload_op = nullptr,
                .event_new = nullptr,
                .event_free = nullptr,
                .event_synchronize = nullptr},
      .reg = registry(),
      .context = nullptr,
  };
  return &instance;
}

// --- registry

const char* registry_name(ggml_backend_reg_t) { return "HEADQ"; }
size_t registry_device_count(ggml_backend_reg_t) { return 1; }
ggml_backend_dev_t registry_device(ggml_backend_reg_t, size_t) { return device(); }

int api_configure(const headq_options* options, char* error, size_t error_size) {
  try {
    PluginState::instance().configure(*options);
    return 0;
  } catch (const std::exception& e) {
    if (error_size > 0) {
      std::strncpy(error, e.what(), error_size - 1);
      error[error_size - 1] = '\0';
    }
    return 1;
  }
}

uint32_t api_configuration() { return PluginState::instance().policy()->configuration; }

const char* api_last_error() { return PluginState::instance().last_error().c_str(); }

void api_get_stats(uint32_t configuration, headq_stats* out) {
  const KvBuffer::Stats stats = KvBuffer::stats(configuration);
  *out = {};
  out->n_tokens = stats.n_tokens;
  out->n_elements = stats.sum.elements;
  out->packed_elements = stats.sum.packed_elements;
  out->packed_bytes = stats.sum.packed;
  out->dense_bytes = stats.dense;
  out->meta_bytes = stats.sum.meta;
  out->profile_bytes = stats.profile;
}

void api_set_observer(headq_observer_t observer, void* user) {
  PluginState::instance().set_observer(observer, user);
}

void* registry_proc_address(ggml_backend_reg_t, const char* name) {
  const std::string wanted = name;
  if (wanted == "ggml_backend_set_n_threads") return reinterpret_cast<void*>(backend_set_n_threads);
  if (wanted == "headq_configure") return reinterpret_cast<void*>(api_configure);
  if (wanted == "headq_configuration") return reinterpret_cast<void*>(api_configuration);
  if (wanted == "headq_last_error") return reinterpret_cast<void*>(api_last_error);
  if (wanted == "headq_get_stats") return reinterpret_cast<void*>(api_get_stats);
  if (wanted == "headq_set_observer") return reinterpret_cast<void*>(api_set_observer);
  return nullptr;
}

ggml_backend_reg* registry() {
  static ggml_backend_reg instance = {
      .api_version = GGML_BACKEND_API_VERSION,
      .iface = {.get_name = registry_name,
                .get_device_count = registry_device_count,
                .get_device = registry_device,
                .get_proc_address = registry_proc_address},
      .context = nullptr,
  };
  return &instance;
}

}  // namespace

// The structures above are ggml's internal ones and change between its versions.
ggml_backend_reg* load_plugin() {
  if (std::strcmp(ggml_version(), HEADQ_GGML_VERSION) != 0) {
    GGML_LOG_ERROR("headq: this plugin is built for ggml %s, the program runs ggml %s\n",
                   HEADQ_GGML_VERSION, ggml_version());
    return nullptr;
  }
  try {
    PluginState::instance().load_environment();
  } catch (const std::exception& e) {
    PluginState::instance().refuse(e.what());
    return nullptr;
  }
  return registry();
}

}  // namespace headq

extern "C" __attribute__((visibility("default"))) ggml_backend_reg_t ggml_backend_init(void) {
  return headq::load_plugin();
}
