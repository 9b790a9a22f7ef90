#pragma once

#include <cstddef>
#include <cstdint>

namespace headq {

// A run of zeros that takes real memory page by page as it is written to.
class LazyMemory {
 public:
  // Throws std::bad_alloc.
  explicit LazyMemory(size_t n_bytes);
  ~LazyMemory();
  LazyMemory(const LazyMemory&) = delete;
  LazyMemory& operator=(const LazyMemory&) = delete;

  uint8_t* data() { return data_; }
  const uint8_t* data() const { return data_; }

  // All zeros again, and its pages given back.
  void release();

 private:
  uint8_t* data_ = nullptr;
  size_t n_bytes_;
};

}  // namespace headq
