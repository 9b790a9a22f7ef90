#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "attention/kernels.h"
#include "ggml/plugin_api.h"
#include "headq/profile.h"
#include "headq/spec.h"

namespace headq {

// What a cache is built with; fixed when its buffer is made.
struct Policy {
  uint32_t configuration = 0;
  CacheSpec spec;
  std::shared_ptr<const Profile> profile;  // may be null
};

// State of the plugin in this process. llama.cpp drives a backend from one thread at a time, and so
// is this.
class PluginState {
 public:
  static PluginState& instance();

  // Takes the policy of HEADQ_* and picks the kernels. Throws Error.
  void load_environment();
  // Throws Error and leaves the policy as it was.
  void configure(const headq_options& options);

  const std::shared_ptr<const Policy>& policy() const { return policy_; }
  const Kernels& kernels() const { return *kernels_; }

  // Keeps and logs why something was refused.
  void refuse(const std::string& why);
  const std::string& last_error() const { return last_error_; }

  // A refusal that comes up where ggml has no way to say no (asking what ops are supported) is kept
  // here and makes the next allocation fail, so that no context is made that would not work.
  void refuse_next_allocation(const std::string& why);
  bool take_pending_refusal();

  void set_observer(headq_observer_t observer, void* user);
  bool has_observer() const { return observer_ != nullptr; }
  void observe(const headq_observation& observation) const { observer_(&observation, observer_user_); }

 private:
  std::shared_ptr<const Policy> policy_ = std::make_shared<Policy>();
  const Kernels* kernels_ = nullptr;
  std::string last_error_;
  bool pending_refusal_ = false;
  headq_observer_t observer_ = nullptr;
  void* observer_user_ = nullptr;
};

}  // namespace headq
