#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace headq {

// The bytes of a string, for functions that take bytes.
inline std::span<const uint8_t> as_bytes(const std::string& text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

// A whole regular file. Throws Error(kIo) with the reason of the operating system.
std::vector<uint8_t> read_file(const std::string& path);

// Writes a file whole or not at all: to a new temporary file beside it, flushed to the disk and
// renamed over path. A link is followed. Throws Error(kIo) with the reason of the operating system;
// path is then what it was before and the temporary file is gone. Only regular files are replaced.
void write_file(const std::string& path, std::span<const uint8_t> bytes);

// A regular file mapped for reading. Pages that are never looked at are never read. The file must
// not be cut short while it is mapped.
class MappedFile {
 public:
  // Throws Error(kIo) with the reason of the operating system.
  explicit MappedFile(const std::string& path);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&&) = delete;

  std::span<const uint8_t> bytes() const { return {data_, size_}; }

 private:
  const uint8_t* data_ = nullptr;
  size_t size_ = 0;
};

}  // namespace headq
