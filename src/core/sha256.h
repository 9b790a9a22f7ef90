#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

namespace headq {

// SHA-256 (FIPS 180-4) of a stream of bytes.
class Sha256 {
 public:
  void update(std::span<const uint8_t> bytes) noexcept;
  // 64 lowercase hex digits. Ends the stream; the object is not used afterwards.
  std::string hex();

 private:
  void compress(const uint8_t* block) noexcept;

  std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                    0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};
  size_t fill_ = 0;       // bytes waiting in block_
  uint64_t n_bytes_ = 0;  // bytes of the whole stream
};

std::string sha256_hex(std::span<const uint8_t> bytes);

}  // namespace headq
