#include "ggml/policy.h"

#include <ggml-impl.h>

#include "attention/dispatch.h"
#include "core/env.h"
#include "headq/error.h"

namespace headq {
namespace {

Policy make_policy(uint32_t configuration, const std::string& kv, const std::string& kv_layer,
                   const std::string& profile) {
  Policy policy;
  policy.configuration = configuration;
  if (!kv.empty()) policy.spec.kv = KvSpec::parse(kv);
  policy.spec.parse_layers(kv_layer);
  if (!profile.empty()) policy.profile = std::make_shared<Profile>(Profile::load(profile));
  if (policy.spec.needs_profile() && policy.profile == nullptr) {
    throw Error(ErrorCode::kInvalidArgument,
                "codec '" + policy.spec.kv.to_string() + "' needs a profile (HEADQ_PROFILE)");
  }
  return policy;
}

const char* text(const char* s) { return s != nullptr ? s : ""; }

}  // namespace

PluginState& PluginState::instance() {
  static PluginState state;
  return state;
}

void PluginState::load_environment() {
  const Environment env = Environment::read();
  kernels_ = &kernels_for(select_isa(env.isa));
  Policy policy = make_policy(0, env.kv, env.kv_layer, env.profile);
  if (!env.window.empty()) policy.spec.window = parse_int("HEADQ_WINDOW", env.window, 0, INT32_MAX);
  if (!env.sinks.empty()) policy.spec.sinks = parse_int("HEADQ_SINKS", env.sinks, 0, INT32_MAX);
  policy.spec.validate();
  policy_ = std::make_shared<Policy>(std::move(policy));
}

void PluginState::configure(const headq_options& options) {
  Policy policy = make_policy(policy_->configuration + 1, text(options.kv), text(options.kv_layer),
                              text(options.profile));
  policy.spec.window = options.window;
  policy.spec.sinks = options.sinks;
  policy.spec.validate();
  policy_ = std::make_shared<Policy>(std::move(policy));
}

void PluginState::refuse(const std::string& why) {
  last_error_ = why;
  GGML_LOG_ERROR("headq: %s\n", why.c_str());
}

void PluginState::refuse_next_allocation(const std::string& why) {
  if (pending_refusal_) return;  // the first reason is the one to read
  pending_refusal_ = true;
  refuse(why);
}

bool PluginState::take_pending_refusal() {
  const bool pending = pending_refusal_;
  pending_refusal_ = false;
  return pending;
}

void PluginState::set_observer(headq_observer_t observer, void* user) {
  observer_ = observer;
  observer_user_ = user;
}

}  // namespace headq
