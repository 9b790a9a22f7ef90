#pragma once

#include <cstdint>
#include <vector>

namespace headq {

// In place orthonormal Walsh-Hadamard transform of x [d], block-diagonal over the largest power of
// two that divides d (80 = 5 blocks of 16). Its own inverse.
void hadamard(float* x, int d);

// r orthonormal rows [r][d] of Gaussian vectors (modified Gram-Schmidt), the same for the same seed
// on every machine.
std::vector<float> random_basis(int d, int r, uint64_t seed);

}  // namespace headq
