#include "core/isa.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "headq/error.h"

#if defined(__aarch64__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#endif

namespace headq {
namespace {

constexpr Isa kIsas[] = {Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kNeon, Isa::kDotprod};

}  // namespace

std::string_view isa_name(Isa isa) {
  switch (isa) {
    case Isa::kScalar:
      return "scalar";
    case Isa::kAvx2:
      return "avx2";
    case Isa::kAvx512:
      return "avx512";
    case Isa::kNeon:
      return "neon";
    case Isa::kDotprod:
      return "dotprod";
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
#elif defined(__aarch64__)
  isas.push_back(Isa::kNeon);
  if ((getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0) isas.push_back(Isa::kDotprod);
#endif
  return isas;
}

Isa select_isa(const std::string& request) {
  const std::vector<Isa> have = available_isas();
  if (request.empty()) return have.back();
  for (Isa isa : kIsas) {
    if (isa_name(isa) != request) continue;
    if (std::find(have.begin(), have.end(), isa) == have.end()) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("HEADQ_ISA={}: this machine does not have it, the best it has is {}",
                              request, isa_name(have.back())));
    }
    return isa;
  }
  std::vector<std::string_view> names;
  for (Isa isa : kIsas) names.push_back(isa_name(isa));
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("HEADQ_ISA={} is not one of {}", request, fmt::join(names, ", ")));
}

}  // namespace headq
