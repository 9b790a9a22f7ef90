#include "core/lazy_memory.h"

#include <sys/mman.h>

#include <new>

namespace headq {

LazyMemory::LazyMemory(size_t n_bytes) : n_bytes_(n_bytes) {
  if (n_bytes == 0) return;
  void* memory = mmap(nullptr, n_bytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  data_ = static_cast<uint8_t*>(memory);
}

LazyMemory::~LazyMemory() {
  if (data_ != nullptr) munmap(data_, n_bytes_);
}

void LazyMemory::release() {
  if (data_ != nullptr) madvise(data_, n_bytes_, MADV_DONTNEED);
}

}  // namespace headq
