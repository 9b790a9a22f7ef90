#include "attention/dispatch.h"

namespace headq {

const Kernels& kernels_for(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return kAvx512Kernels;
  if (isa == Isa::kAvx2) return kAvx2Kernels;
#elif defined(__aarch64__)
  if (isa == Isa::kDotprod) return kDotprodKernels;
  if (isa == Isa::kNeon) return kNeonKernels;
#endif
  (void)isa;
  return kScalarKernels;
}

}  // namespace headq
