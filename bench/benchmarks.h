#pragma once

#include <string>
#include <vector>

#include "core/isa.h"

namespace headq::bench {

struct BenchOptions {
  int depth = 16384;  // cells of an attention op
  int n_layers = 8;   // read in turn
  bool all = false;   // every combination instead of a choice of them
};

// Each registers its benchmarks with Google Benchmark; names are made of
//   WHAT / KEYS:VALUES / d<head_dim> / q<query heads per KV head> / <isa> / t<threads>.
void register_attention(const BenchOptions& options);
void register_encode(const BenchOptions& options);

// Names of counters.
inline constexpr const char* kNsPerTokenHead = "ns/token/head";
inline constexpr const char* kNsPerRow = "ns/row";
inline constexpr const char* kBytesPerToken = "B/token";
inline constexpr const char* kGigabytesPerSecond = "GB/s";
inline constexpr const char* kError = "error";
inline constexpr const char* kRoundingError = "rounding";
inline constexpr const char* kTimesF16 = "x f16";

inline constexpr int kHeadDims[] = {64, 128, 256};
inline constexpr const char* kCodecs[] = {"nib2.5/nib2", "kivi2/kivi2", "kivi2+hq4x4/kivi2"};

}  // namespace headq::bench
