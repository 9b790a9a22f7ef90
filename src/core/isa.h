#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace headq {

enum class Isa { kScalar, kAvx2, kAvx512, kNeon, kDotprod };

// "scalar", "avx2", "avx512", "neon", "dotprod".
std::string_view isa_name(Isa isa);

// Levels this build has kernels for and this CPU can run, best last. Always holds kScalar.
std::vector<Isa> available_isas();

// The level named by request, or the best one for "". Strict: throws Error(kInvalidArgument) for an
// unknown name and Error(kUnsupported) for a level this machine lacks.
Isa select_isa(const std::string& request);

}  // namespace headq
