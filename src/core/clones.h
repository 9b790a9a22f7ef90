#pragma once

// A function that is compiled once for each ISA level and chosen when the program is loaded. Every clone
// gives the same bits: element-wise sums in a fixed order, no fused multiply-adds.
#if defined(__x86_64__)
#define HEADQ_CLONES __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define HEADQ_CLONES
#endif
