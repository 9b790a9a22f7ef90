// Bookkeeping of the lockstep run, with sources whose answers are known in closed form.

#include <gtest/gtest.h>

#include <array>
#include <cmath>
#include <random>

#include "headq/error.h"
#include "runner/perplexity.h"

namespace headq {
namespace {

constexpr int kVocab = 50;
constexpr int32_t kBos = 0;

// Predicts from the last token alone: the row of token t is table[t]. With a lag it answers with
// the row of an earlier token, as a misaligned run would. Checks the protocol as it goes.
class BigramSource : public LogitSource {
 public:
  explicit BigramSource(uint64_t seed, size_t lag = 0) : lag_(lag) {
    std::mt19937_64 rng(seed);
    std::normal_distribution<float> normal(0, 2);
    for (auto& row : table_) {
      for (float& x : row) x = normal(rng);
    }
  }

  void clear() override {
    sequence_.clear();
    ++n_clears_;
  }

  std::span<const float> decode(std::span<const int32_t> tokens, int first_pos,
                                int first_output) override {
    EXPECT_EQ(static_cast<size_t>(first_pos), sequence_.size()) << "a gap or an overlap";
    rows_.clear();
    for (int32_t token : tokens) {
      sequence_.push_back(token);
      all_.push_back(token);
      if (static_cast<int>(sequence_.size()) - 1 < first_output) continue;
      const auto& row = table_[static_cast<size_t>(sequence_.at(sequence_.size() - 1 - lag_))];
      rows_.insert(rows_.end(), row.begin(), row.end());
    }
    if (drop_row_ && !rows_.empty()) rows_.resize(rows_.size() - kVocab);
    return rows_;
  }

  void drop_a_row() { drop_row_ = true; }
  void plant_nan(int32_t token) { table_[static_cast<size_t>(token)][3] = std::nanf(""); }

  // -ln p(next | token), by the definition.
  double nll(int32_t token, int32_t next) const {
    const auto& row = table_[static_cast<size_t>(token)];
    long double sum = 0;
    for (float x : row) sum += std::exp(static_cast<long double>(x));
    return static_cast<double>(std::log(sum) - row[static_cast<size_t>(next)]);
  }

  const std::vector<int32_t>& all_inputs() const { return all_; }
  int n_clears() const { return n_clears_; }

 private:
  std::array<std::array<float, kVocab>, kVocab> table_;
  std::vector<float> rows_;
  std::vector<int32_t> sequence_;
  std::vector<int32_t> all_;
  size_t lag_;
  bool drop_row_ = false;
  int n_clears_ = 0;
};

std::vector<int32_t> random_tokens(size_t n, uint64_t seed) {
  std::mt19937_64 rng(seed);
  std::uniform_int_distribution<int32_t> any(1, kVocab - 1);
  std::vector<int32_t> tokens(n);
  for (int32_t& t : tokens) t = any(rng);
  return tokens;
}

std::vector<double> expected_nll(const BigramSource& source, const std::vector<int32_t>& tokens,
                                 int n_ctx, int n_chunks) {
  std::vector<double> nll;
  for (int chunk = 0; chunk < n_chunks; ++chunk) {
    for (int pos = n_ctx / 2; pos < n_ctx - 1; ++pos) {
      const auto at = static_cast<size_t>(chunk * n_ctx + pos);
      nll.push_back(source.nll(tokens[at], tokens[at + 1]));
    }
  }
  return nll;
}

std::vector<PairedScore> run(const ChunkedText& text, LogitSource& reference,
                             LogitSource& candidate, int n_chunks, int n_batch, int n_threads = 1) {
  LogitSource* const candidates[] = {&candidate};
  return score_lockstep(text, reference, candidates, kVocab,
                        {.n_chunks = n_chunks, .n_batch = n_batch, .n_threads = n_threads})
      .front();
}

double largest_error(const std::vector<PairedScore>& scores, const std::vector<double>& nll) {
  EXPECT_EQ(scores.size(), nll.size());
  double worst = 0;
  for (size_t i = 0; i < std::min(nll.size(), scores.size()); ++i) {
    worst = std::max(worst, std::abs(scores[i].nll - nll[i]));
  }
  return worst;
}

TEST(Lockstep, ScoresTheTokenAfterEachPositionOfTheSecondHalf) {
  for (int n_ctx : {16, 17, 64}) {
    const auto tokens = random_tokens(static_cast<size_t>(3 * n_ctx + 5), 1);
    const ChunkedText text("t", tokens, n_ctx, kBos);
    for (int n_batch : {1, 3, n_ctx / 2, n_ctx / 2 + 1, n_ctx - 1, n_ctx}) {
      BigramSource reference(1), candidate(2);
      const auto scores = run(text, reference, candidate, 3, n_batch);
      EXPECT_LT(largest_error(scores, expected_nll(candidate, tokens, n_ctx, 3)), 1e-12)
          << "n_ctx " << n_ctx << " n_batch " << n_batch;
      ASSERT_EQ(scores.size(), static_cast<size_t>(3 * (n_ctx - 1 - n_ctx / 2)));
      EXPECT_NEAR(scores[0].nll_reference, expected_nll(reference, tokens, n_ctx, 3)[0], 1e-12);
    }
  }
}

TEST(Lockstep, APlantedMisalignmentIsSeen) {
  const auto tokens = random_tokens(128, 2);
  const ChunkedText text("t", tokens, 64, kBos);
  BigramSource reference(1), right(1), off_by_one(1, /*lag=*/1);
  EXPECT_EQ(summarize(run(text, reference, right, 2, 16)).kld.value, 0.0);
  const auto scores = run(text, reference, off_by_one, 2, 16);
  EXPECT_GT(largest_error(scores, expected_nll(right, tokens, 64, 2)), 1.0);
  EXPECT_GT(summarize(scores).kld.value, 0.5);
}

TEST(Lockstep, EverySourceReadsTheSameTokensWithBosInFrontOfEachChunk) {
  const auto tokens = random_tokens(3 * 32 + 31, 3);
  const ChunkedText text("t", tokens, 32, kBos);
  BigramSource reference(1), candidate(2);
  run(text, reference, candidate, 3, 10);
  std::vector<int32_t> expected(tokens.begin(), tokens.begin() + 3 * 32);
  for (size_t chunk = 0; chunk < 3; ++chunk) expected[chunk * 32] = kBos;
  EXPECT_EQ(reference.all_inputs(), expected);
  EXPECT_EQ(candidate.all_inputs(), expected);
  EXPECT_EQ(reference.n_clears(), 3);
}

TEST(Lockstep, WithoutBosTheTextIsReadAsItIs) {
  const auto tokens = random_tokens(64, 3);
  const ChunkedText text("t", tokens, 32, -1);
  BigramSource reference(1), candidate(2);
  run(text, reference, candidate, 2, 32);
  EXPECT_EQ(reference.all_inputs(), tokens);
}

TEST(Lockstep, ScoresDependNeitherOnBatchesNorOnThreads) {
  const auto tokens = random_tokens(256, 4);
  const ChunkedText text("t", tokens, 128, kBos);
  const auto key = [](const std::vector<PairedScore>& scores) {
    std::vector<double> values;
    for (const PairedScore& s : scores)
      values.insert(values.end(), {s.nll, s.nll_reference, s.kld});
    return values;
  };
  BigramSource reference(1), candidate(2);
  const auto once = key(run(text, reference, candidate, 2, 128, 1));
  for (int n_batch : {7, 64}) {
    for (int n_threads : {1, 2, 5}) {
      BigramSource again(1), other(2);
      EXPECT_EQ(key(run(text, again, other, 2, n_batch, n_threads)), once);
    }
  }
}

TEST(Lockstep, CandidatesDoNotDisturbEachOther) {
  const auto tokens = random_tokens(64, 5);
  const ChunkedText text("t", tokens, 64, kBos);
  BigramSource reference(1), a(2), b(3), alone(3);
  LogitSource* const both[] = {&a, &b};
  const auto scores = score_lockstep(text, reference, both, kVocab, {.n_chunks = 1, .n_batch = 9});
  BigramSource fresh(1);
  EXPECT_EQ(summarize(scores[1]).kld.value, summarize(run(text, fresh, alone, 1, 9)).kld.value);
}

TEST(Lockstep, AMissingRowIsRefused) {
  const ChunkedText text("t", random_tokens(64, 6), 64, kBos);
  BigramSource reference(1), candidate(2);
  candidate.drop_a_row();
  EXPECT_THROW(run(text, reference, candidate, 1, 16), Error);
}

TEST(Lockstep, LogitsThatAreNotFiniteAreRefusedByPosition) {
  std::vector<int32_t> tokens(64, 1);
  tokens[40] = 9;
  const ChunkedText text("t", tokens, 64, kBos);
  BigramSource reference(1), candidate(2);
  candidate.plant_nan(9);
  try {
    run(text, reference, candidate, 1, 8, 2);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "the model gives logits that are not finite at positions 40 to 47");
  }
}

TEST(Lockstep, ProgressEndsAtItsTotal) {
  const ChunkedText text("t", random_tokens(64, 7), 32, kBos);
  BigramSource reference(1), candidate(2);
  LogitSource* const candidates[] = {&candidate};
  std::vector<size_t> seen;
  size_t total = 0;
  score_lockstep(text, reference, candidates, kVocab,
                 {.n_chunks = 2, .n_batch = 20, .progress = [&](size_t done, size_t of) {
                    seen.push_back(done);
                    total = of;
                  }});
  ASSERT_EQ(total, 2u * 2 * 2);
  for (size_t i = 0; i < seen.size(); ++i) EXPECT_EQ(seen[i], i + 1);
  EXPECT_EQ(seen.size(), total);
}

TEST(ChunkedText, TooShortATextNamesItsTokensAndTheLimit) {
  try {
    ChunkedText("notes.txt", random_tokens(31, 1), 32, kBos);
    FAIL() << "accepted";
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(), "text 'notes.txt' has 31 tokens, one chunk needs 32 (-c)");
  }
  EXPECT_EQ(ChunkedText("notes.txt", random_tokens(32, 1), 32, kBos).n_chunks(), 1);
  EXPECT_EQ(ChunkedText("notes.txt", random_tokens(95, 1), 32, kBos).n_chunks(), 2);
}

TEST(ChunkedText, MoreChunksThanThereAreIsRefused) {
  const ChunkedText text("t", random_tokens(95, 1), 32, kBos);
  EXPECT_EQ(chunks_to_run(text, -1), 2);
  EXPECT_EQ(chunks_to_run(text, 2), 2);
  EXPECT_THROW(chunks_to_run(text, 3), Error);
  EXPECT_THROW(chunks_to_run(text, 0), Error);
  EXPECT_THROW(chunks_to_run(text, -2), Error);
}

}  // namespace
}  // namespace headq
