#pragma once

#include <span>

namespace headq {

// What a cache's error does to one query's attention, as pure functions over spans. Everything is
// in double; docs/diagnose.md has the derivations. Throughout, the query sees n tokens with scores
// s_j (logit scale and softcap applied), p = softmax(s), and a coded cache turns s_j into
// s_j + delta_j. All spans have n >= 1 elements.

// p [n] = softmax(scores [n]). Scores must be finite.
void softmax(std::span<const double> scores, std::span<double> p);

// -sum_j p_j ln p_j in nats; e to its power is the number of tokens that share the attention.
double entropy(std::span<const double> p);

// Index of the largest element, the first one of equals.
size_t top_index(std::span<const double> x);

// What delta does to one query's attention, from the least to the most that attention sees of it.
struct ScoreDamage {
  // min over c of mean_j (delta_j - c)^2: the score error modulo what the softmax cannot see.
  double score_error = 0;
  // Var_p(delta) / 2 = delta^T F delta / 2 with the softmax's Fisher matrix F = diag(p) - p p^T:
  // the second-order term of the divergence below.
  double fisher = 0;
  // D(p || p') of the dense attention p from the coded one p' = softmax(s + delta), in nats:
  // ln sum_j p_j exp(delta_j) - sum_j p_j delta_j. Never negative beyond rounding, and exactly 0
  // for a delta that all tokens share.
  double kl = 0;
};

// p: softmax of the dense scores. delta: finite.
ScoreDamage score_damage(std::span<const double> p, std::span<const double> delta);

// p' [n] = softmax(s + delta), from p = softmax(s); p itself for a delta that all tokens share.
void reweigh(std::span<const double> p, std::span<const double> delta, std::span<double> p_coded);

}  // namespace headq
