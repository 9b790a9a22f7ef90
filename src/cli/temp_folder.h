#pragma once

#include <string>

namespace headq {

// A folder for files that are gone when the object goes.
class TempFolder {
 public:
  // Throws Error(kIo).
  TempFolder();
  ~TempFolder();
  TempFolder(const TempFolder&) = delete;
  TempFolder& operator=(const TempFolder&) = delete;

  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

}  // namespace headq
