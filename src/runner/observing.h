#pragma once

#include "headq/calibrate.h"
#include "runner/plugin.h"

namespace headq {

// What the plugin's observer is shown, with the spans that its shape says.
Observation observation_of(const headq_observation& o);

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
