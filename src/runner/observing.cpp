#include "runner/observing.h"

#include <utility>

#include "ggml/observation.h"
#include "runner/plugin.h"

namespace headq {
namespace {

// Observes attention while it lives; takes the observer away whatever ends the run.
class ScopedObserver {
 public:
  ScopedObserver(Plugin& plugin, Plugin::Observer observer) : plugin_(plugin) {
    plugin_.set_observer(std::move(observer));
  }
  ~ScopedObserver() { plugin_.set_observer({}); }
  ScopedObserver(const ScopedObserver&) = delete;
  ScopedObserver& operator=(const ScopedObserver&) = delete;

 private:
  Plugin& plugin_;
};

}  // namespace

void observe_chunks(const Model& model, std::span<const std::vector<int32_t>> chunks, int n_threads,
                    const ChunkObserver& observer) {
  const int n_ctx = static_cast<int>(chunks[0].size());
  Context context(model, {.n_ctx = n_ctx,
                          .n_batch = n_ctx,
                          .n_ubatch = n_ctx,
                          .n_outputs = 1,
                          .n_threads = n_threads,
                          .tensors = observer.tensors});
  Plugin& plugin = Plugin::instance();
  const ScopedObserver observing(
      plugin, [&](const headq_observation& o) { observer.observe(observation_of(o)); });
  for (const std::vector<int32_t>& chunk : chunks) {
    context.clear();
    if (observer.begin_chunk) observer.begin_chunk();
    context.decode(chunk, 0, n_ctx - 1);
    plugin.rethrow_observer_error();
    if (observer.chunk_done) observer.chunk_done();
  }
}

}  // namespace headq
