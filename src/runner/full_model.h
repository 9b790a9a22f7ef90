#pragma once

#include <array>
#include <span>
#include <string>
#include <vector>

#include "runner/perplexity.h"

namespace headq {

// Experiment 6: the whole model with keys packed and values dense, and with both packed, at 2, 3 and
// 4 bits: what a base loses, what side codes, values refined by attention and nib give back, and what
// else the side code's bits could have bought.

inline constexpr std::array<int, 3> kFullModelBits = {2, 3, 4};
inline constexpr std::array<int, 4> kFullModelRanks = {1, 2, 4, 8};
inline constexpr int kControlRank = 4;  // of the side code that controls are made for

enum class FullModelPart {
  kKeysOnly,    // values dense
  kFullKv,      // keys and values
  kLlamaCpp,    // caches of llama.cpp's own CPU backend
};

enum class FullModelRole {
  kBase,         // kivi<b>
  kSideCode,     // kivi<b>+hq<rank>x4
  kWideBase,     // the bits of the side code of kControlRank spent on wider key channels of the base
  kRandomBasis,  // that side code along random directions
  kWrongSign,    // that side code subtracted
  kPaidTokens,   // kivi2 with values kivi2+a2: 4 bits for the tokens that attention was paid to
  kRandomTokens, // the same for random tokens
  kNib,          // nib<b>: fewer bits than kivi<b>, which has b and its scales
  kReference,    // a cache of llama.cpp's own
};

struct FullModelRow {
  FullModelPart part = FullModelPart::kKeysOnly;
  FullModelRole role = FullModelRole::kBase;
  int bits = 0;  // b; 0 for caches of llama.cpp
  int rank = 0;  // of the side code, or of the one whose bits were spent otherwise
  std::string kv;
  double true_bits = 0;
  double packed_bits = 0;
  PairedSummary summary;  // against the dense cache
  DamageRemoved removed;  // of the damage of the base of these bits; NaN for bases and references
};

struct FullModel {
  int n_ctx = 0;
  int n_chunks = 0;
  size_t n_scored = 0;
  int window = 0, sinks = 0;
  Estimate dense_ppl;
  CacheStats dense_cache;
  std::vector<FullModelRow> rows;  // by part, then bits
};

// The profile of a calibration with codes of nib for both sides.
struct RateProfile {
  double rate = 0;
  std::string path;
};

struct FullModelOptions {
  int n_threads = 1;
  ProgressFn progress = {};
};

// Channels that have to become wide on kivi<bits> to cost at least what a side code of this rank
// does: 4 bits a token and two 16-bit parameters a block for each direction.
int wide_channels(int bits, int rank);

// Measures all chunks of a text, each cache against the same dense one. profiles: one for each of
// kFullModelBits at least; side codes take their bases from the first. Rows that a model cannot have
// are left out: wide channels where head_dim has not as many, types of llama.cpp whose blocks do not
// divide it. Throws Error(kInvalidArgument) when
// a profile is missing, and what measure_perplexity() throws.
FullModel measure_full_model(const Model& model, const ChunkedText& text,
                             std::span<const RateProfile> profiles,
                             const FullModelOptions& options);

}  // namespace headq
