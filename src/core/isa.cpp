#include "core/isa.h"

#include <fmt/format.h>

#include <algorithm>

#include "headq/error.h"

namespace headq {

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
  }
  return "?";
}

std::vector<Isa> available_isas() {
  std::vector<Isa> isas = {Isa::kScalar};
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
      __builtin_cpu_supports("f16c")) {
    isas.push_back(Isa::kAvx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
        __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni")) {
      isas.push_back(Isa::kAvx512);
    }
  }
#endif
  return isas;
}

Isa select_isa(const std::string& request) {
  const std::vector<Isa> have = available_isas();
  if (request.empty()) return have.back();
  for (Isa isa : {Isa::kScalar, Isa::kAvx2, Isa::kAvx512}) {
    if (isa_name(isa) != request) continue;
    if (std::find(have.begin(), have.end(), isa) == have.end()) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("HEADQ_ISA={}: this machine does not have it, the best it has is {}",
                              request, isa_name(have.back())));
    }
    return isa;
  }
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("HEADQ_ISA={} is not one of scalar, avx2, avx512", request));
}

}  // namespace headq
