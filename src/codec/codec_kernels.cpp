#include "codec/codec_kernels.h"

#include "core/env.h"

namespace headq {

const CodecKernels& codec_kernels_for(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::kAvx512) return kAvx512CodecKernels;
  if (isa == Isa::kAvx2) return kAvx2CodecKernels;
#elif defined(__aarch64__)
  if (isa == Isa::kNeon || isa == Isa::kDotprod) return kNeonCodecKernels;
#endif
  static_cast<void>(isa);
  return kScalarCodecKernels;
}

const CodecKernels& codec_kernels() {
  return codec_kernels_for(select_isa(Environment::read().isa));
}

}  // namespace headq
