#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "headq/profile.h"

namespace headq {

// The bytes of a profile file (docs/format.md). Throws Error(kInvalidArgument) for a profile that
// could not be read back.
std::vector<uint8_t> serialize_profile(const Profile& profile);

// Inverse of serialize_profile; name is for messages. Throws what Profile::load throws, but kIo.
Profile parse_profile(std::span<const uint8_t> bytes, const std::string& name);

}  // namespace headq
