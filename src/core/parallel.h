#pragma once

#include <omp.h>

#include <algorithm>
#include <cstddef>

namespace headq {

// Runs fn(i, thread) for i in [0, n) on up to n_threads threads of the OpenMP team (the one ggml
// uses when both link the same libgomp). thread is in [0, n_threads). Tasks are handed out one at a
// time; what a task computes must not depend on the thread that runs it. fn must not throw.
template <typename Fn>
void parallel_for(int n_threads, size_t n, const Fn& fn) {
  const int team = static_cast<int>(std::min<size_t>(static_cast<size_t>(std::max(n_threads, 1)), n));
  if (team <= 1) {
    for (size_t i = 0; i < n; ++i) fn(i, 0);
    return;
  }
#pragma omp parallel for num_threads(team) schedule(dynamic, 1)
  for (size_t i = 0; i < n; ++i) fn(i, omp_get_thread_num());
}

}  // namespace headq
