#pragma once

namespace oracle {

// IEEE 754 binary16 as the compiler knows it.
#if defined(__aarch64__)
using CompilerHalf = __fp16;
#else
using CompilerHalf = _Float16;
#endif

}  // namespace oracle
