#include "runner/observing.h"

#include <utility>

namespace headq {

ScopedObserver::ScopedObserver(Plugin& plugin, Plugin::Observer observer) : plugin_(plugin) {
  plugin_.set_observer(std::move(observer));
}

ScopedObserver::~ScopedObserver() { plugin_.set_observer({}); }

}  // namespace headq
