#include "calibrate/samples.h"

namespace headq {
namespace {

void put(std::vector<Half>& rows, size_t slot, size_t d, const float* row) {
  if (rows.size() < (slot + 1) * d) rows.resize((slot + 1) * d);
  for (size_t c = 0; c < d; ++c) rows[slot * d + c] = float_to_half(row[c]);
}

void get(const std::vector<Half>& rows, size_t slot, size_t d, float* row) {
  for (size_t c = 0; c < d; ++c) row[c] = half_to_float(rows[slot * d + c]);
}

}  // namespace

TokenSamples::TokenSamples(int d_k, int d_v, size_t capacity)
    : d_k_(static_cast<size_t>(d_k)), d_v_(static_cast<size_t>(d_v)) {
  k_.reserve(capacity * d_k_);
  v_.reserve(capacity * d_v_);
}

void TokenSamples::set(size_t slot, const float* k, const float* v, float key_weight,
                       float value_weight) {
  put(k_, slot, d_k_, k);
  put(v_, slot, d_v_, v);
  if (slot == key_weight_.size()) {
    key_weight_.push_back(key_weight);
    value_weight_.push_back(value_weight);
    return;
  }
  key_weight_[slot] = key_weight;
  value_weight_[slot] = value_weight;
}

void TokenSamples::key(size_t i, float* row) const { get(k_, i, d_k_, row); }
void TokenSamples::value(size_t i, float* row) const { get(v_, i, d_v_, row); }

std::vector<KeptToken> choose_tokens(uint64_t n_before, size_t n_new, size_t n_slots,
                                     Random& random) {
  std::vector<KeptToken> kept;
  for (size_t i = 0; i < n_new; ++i) {
    const uint64_t index = n_before + i;
    const uint64_t slot = index < n_slots ? index : random.below(index + 1);
    if (slot < n_slots) kept.push_back({i, static_cast<size_t>(slot)});
  }
  return kept;
}

}  // namespace headq
