#pragma once

#include <stdexcept>
#include <string>

namespace headq {

enum class ErrorCode {
  kInvalidArgument,  // a value outside its limits; the message names both
  kUnsupported,      // asked for correctly, but this build or machine cannot serve it
  kMismatch,         // two things that must belong together do not (profile and model, versions)
  kCorrupt,          // a file that is not what its header says
  kIo,               // the operating system said no
};

// The one exception the library throws. Thrown from cold paths only; the message is one line that
// names the offending value and the limit.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message) : std::runtime_error(message), code_(code) {}
  ErrorCode code() const noexcept { return code_; }

 private:
  ErrorCode code_;
};

}  // namespace headq
