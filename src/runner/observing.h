#pragma once

#include "runner/plugin.h"

namespace headq {

// Observes attention while it lives; takes the observer away whatever ends the run.
class ScopedObserver {
 public:
  ScopedObserver(Plugin& plugin, Plugin::Observer observer);
  ~ScopedObserver();
  ScopedObserver(const ScopedObserver&) = delete;
  ScopedObserver& operator=(const ScopedObserver&) = delete;

 private:
  Plugin& plugin_;
};

}  // namespace headq
