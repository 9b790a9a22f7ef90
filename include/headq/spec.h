#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace headq {

// The base quantizer of a codec.
enum class BaseKind {
  kDense,  // f16 rows, nothing packed
  kKivi,   // asymmetric min-max; keys: per channel over a block, values: per token over 64 channels
  kToken,  // asymmetric min-max per token over groups of 32 channels
  kNib,    // operator-matched: a calibrated transform and codebooks, no parameters in the cache
};

// Where the basis U of the side code comes from.
enum class SideBasis {
  kQuery,   // eigenvectors of E[q q^T], strongest first (the method)
  kKey,     // eigenvectors of Cov(k), strongest first (control)
  kRandom,  // orthonormalised Gaussian vectors from a seed (control)
};

// Which tokens of a block have a second 2 bits of each value.
enum class TokenChoice {
  kNone,
  kPaid,    // those that most squared attention (A^2) was paid to until the block was coded
  kRandom,  // any, from a seed (control)
};

// What one side of the cache is stored as. Immutable value; parse() and to_string() are inverse.
//
//   spec  := base [ side ] | a2 | nib
//   base  := "dense" | ("kivi2" | "kivi3" | "kivi4") [ "w" <n> ] | "kivi8" |
//            ("token2" | "token4") ["h"] ["c"]
//   side  := ("+" | "-") "hq" <rank> "x4" [ "@query" | "@key" | "@random" [ ":" <seed> ] ]
//   a2    := "kivi2+a2" [ "@random" [ ":" <seed> ] ]
//   nib   := "nib" <rate> [ "@random" [ ":" <seed> ] ] [ "-last" <n> ]
//
// "w" gives n more channels, those with the most visible energy, twice the bits (for keys only, a
// control for side codes). "h" rotates each row by an orthonormal Hadamard transform before it is
// coded, "c" subtracts the profile's mean key first. A "-" in front of the side code subtracts the
// logit correction instead of adding it (the wrong-sign control). Side codes and "c" are for keys
// only. "+a2" gives a quarter of the tokens of a block 4 bits, and is for values only. The rate of nib is in bits per element, on average over all layers and heads; a profile
// holds the code of one rate for each side. "@random" names a code that was fitted in a random
// basis, "-last" subtracts the terms of the last n nibbles of each head (controls).
struct CodecSpec {
  BaseKind base = BaseKind::kDense;
  int bits = 16;          // kivi: 2, 3, 4, 8; token: 2, 4; dense: 16
  int wide = 0;           // kivi2 to kivi4, keys only: channels with twice the bits
  bool hadamard = false;  // token only
  bool centred = false;   // token only, keys only
  int side_rank = 0;      // 0: no side code; 1..kMaxSideRank
  int side_sign = +1;     // +1 or -1
  SideBasis side_basis = SideBasis::kQuery;
  uint64_t seed = 1;  // of the random basis, or of random tokens
  TokenChoice refined = TokenChoice::kNone;  // kivi2 only, values only
  double rate = 0.0;  // nib only: kMinRate..kMaxRate bits per element
  int wrong_sign = 0;  // nib only: nibbles of each head whose terms are subtracted

  bool is_dense() const { return base == BaseKind::kDense; }
  bool is_nib() const { return base == BaseKind::kNib; }
  bool needs_profile() const;

  // Throws Error(kInvalidArgument) naming the text and what is allowed.
  static CodecSpec parse(std::string_view text);
  std::string to_string() const;

  bool operator==(const CodecSpec&) const = default;
};

inline constexpr int kMaxSideRank = 16;
inline constexpr int kMaxWide = 128;
inline constexpr double kMinRate = 0.25, kMaxRate = 8.0;
inline constexpr int kMinHeadDim = 16;
inline constexpr int kMaxHeadDim = 256;

// Key and value specs of a whole cache, with per-layer overrides.
struct KvSpec {
  CodecSpec k;
  CodecSpec v;

  // "K/V", or one spec for both sides (a side code then applies to the keys alone, "+a2" to the values).
  static KvSpec parse(std::string_view text);
  std::string to_string() const;  // always "K/V"

  bool operator==(const KvSpec&) const = default;
};

struct CacheSpec {
  KvSpec kv;
  std::map<int, KvSpec> layers;  // layer index -> override
  int window = 32;               // most recent tokens that are always read dense, 0..4096
  int sinks = 4;                 // first positions of a sequence that stay dense, 0..64

  const KvSpec& layer(int il) const;
  std::vector<KvSpec> all() const;  // kv and every override
  bool needs_profile() const;

  // Adds the overrides of "L:K/V[,L:K/V...]", for example "0:kivi4/kivi4,1:dense".
  void parse_layers(std::string_view text);
  // Throws Error(kInvalidArgument) when window or sinks is out of range.
  void validate() const;
};

}  // namespace headq
