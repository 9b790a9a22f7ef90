#pragma once

// Figures that compare two sets of logits. All accumulate in double; NaN in either side makes every
// figure NaN, so that a check written !(x <= bound) fails.

#include "ggml/session.h"

namespace headq::testing {

// Largest absolute difference.
double max_difference(const Logits& a, const Logits& b);

// sqrt(sum (a - b)^2 / sum a^2).
double relative_error(const Logits& a, const Logits& b);

// Mean over rows of KL(softmax(a) || softmax(b)), in nats.
double mean_kld(const Logits& a, const Logits& b);

bool all_finite(const Logits& logits);

// Bit for bit.
bool identical(const Logits& a, const Logits& b);

}  // namespace headq::testing
