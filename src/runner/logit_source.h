#pragma once

#include <cstdint>
#include <span>

namespace headq {

// Something that predicts next tokens: a model with its cache, or a stand-in with known answers.
class LogitSource {
 public:
  virtual ~LogitSource() = default;

  // Forgets the sequence.
  virtual void clear() = 0;

  // Appends tokens at positions first_pos, first_pos + 1, ... and returns one row of n_vocab logits
  // for each of them at a position >= first_output, in order: [n_rows][n_vocab]. The row of a
  // position predicts the token after it. Valid until the next call on this object.
  virtual std::span<const float> decode(std::span<const int32_t> tokens, int first_pos,
                                        int first_output) = 0;
};

}  // namespace headq
