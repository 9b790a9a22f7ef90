#include "core/env.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>

#include "headq/error.h"

namespace headq {
namespace {

std::string get(const char* name) {
  const char* value = std::getenv(name);
  return value != nullptr ? value : "";
}

}  // namespace

Environment Environment::read() {
  return {.isa = get("HEADQ_ISA"),
          .kv = get("HEADQ_KV"),
          .kv_layer = get("HEADQ_KV_LAYER"),
          .profile = get("HEADQ_PROFILE"),
          .window = get("HEADQ_WINDOW"),
          .sinks = get("HEADQ_SINKS"),
          .plugin = get("HEADQ_PLUGIN")};
}

int parse_int(const std::string& what, const std::string& text, int lo, int hi) {
  int value = 0;
  const char* end = text.data() + text.size();
  const auto [ptr, ec] = std::from_chars(text.data(), end, value);
  if (ec != std::errc() || ptr != end || value < lo || value > hi) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} '{}' is not a whole number from {} to {}", what, text, lo, hi));
  }
  return value;
}

}  // namespace headq
