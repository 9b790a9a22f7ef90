#pragma once

#include "attention/kernels.h"
#include "core/isa.h"

namespace headq {

// The kernel set of a level that available_isas() lists.
const Kernels& kernels_for(Isa isa);

}  // namespace headq
