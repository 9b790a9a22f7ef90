#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "codec/codec.h"
#include "core/random.h"
#include "headq/calibrate.h"
#include "headq/error.h"

namespace headq {
namespace {

constexpr int kDim = 32;
constexpr int kRows = 512;

// One layer, two KV heads, two query heads each. Keys and values fall off along their channels; the
// keys of head 1 are `loud` times those of head 0.
struct Text {
  std::vector<float> q, k, v;

  Text(uint64_t seed, float loud, float key_offset = 0.0f) {
    Random random(seed);
    const auto fill = [&](std::vector<float>& out, int n_head, auto sigma) {
      for (int i = 0; i < kRows * n_head; ++i) {
        for (int c = 0; c < kDim; ++c) {
          out.push_back(static_cast<float>(random.normal()) * sigma(i % n_head, c));
        }
      }
    };
    fill(q, 4, [](int, int c) { return 0.4f + 0.1f * static_cast<float>(c % 3); });
    fill(k, 2, [&](int h, int c) { return (h == 1 ? loud : 1.0f) * std::exp(-0.08f * static_cast<float>(c)); });
    fill(v, 2, [](int, int c) { return std::exp(-0.05f * static_cast<float>(c)); });
    for (float& x : k) x += key_offset;
  }

  Observation observation() const {
    return {.layer = 0, .n_rows = kRows, .n_head = 4, .n_head_kv = 2, .d_k = kDim, .d_v = kDim,
            .scale = 0.3f, .q = q, .k = k, .v = v, .mask = {}};
  }
};

Profile fitted(const Text& text, const NibOptions& nib, int n_samples = 4096,
               const LayerReadout& readout = {}) {
  Calibrator calibrator({.n_samples = n_samples, .n_threads = nib.n_threads});
  for (int chunk = 0; chunk < 3; ++chunk) {
    calibrator.begin_chunk();
    calibrator.observe(text.observation());
  }
  if (!readout.metric.empty()) calibrator.set_readout(0, readout);
  Profile profile = calibrator.finish();
  calibrator.fit_nib(nib, profile);
  return profile;
}

NibOptions nib(const char* kv) {
  NibOptions options;
  options.kv = KvSpec::parse(kv);
  return options;
}

// E[(q.e)^2] over rows that were not fitted to, of head h.
double score_error(const Profile& profile, const Text& text, int h) {
  const auto codec = make_key_codec(KvSpec::parse(profile.nib).k, kDim,
                                    &profile.heads[static_cast<size_t>(h)], 0, h);
  std::vector<uint8_t> block(codec->layout().bytes());
  std::vector<float> rows(kBlockTokens * kDim), row(kDim);
  double sum = 0.0;
  for (int t = 0; t < kBlockTokens; ++t) {
    for (int c = 0; c < kDim; ++c) rows[static_cast<size_t>(t * kDim + c)] = text.k[static_cast<size_t>((t * 2 + h) * kDim + c)];
  }
  codec->encode(rows.data(), ~uint64_t{0}, block.data());
  for (int t = 0; t < kBlockTokens; ++t) {
    codec->decode(block.data(), t, row.data());
    for (int i = 0; i < 64; ++i) {
      const float* q = text.q.data() + static_cast<size_t>((i * 4 + 2 * h) * kDim);
      double dot = 0.0;
      for (int c = 0; c < kDim; ++c) {
        dot += static_cast<double>(q[c]) * (rows[static_cast<size_t>(t * kDim + c)] - row[static_cast<size_t>(c)]);
      }
      sum += dot * dot / (kBlockTokens * 64.0);
    }
  }
  return sum;
}

int total_nibbles(const Profile& profile, NibCode HeadProfile::*side) {
  int n = 0;
  for (const HeadProfile& head : profile.heads) n += (head.*side).n_nibbles();
  return n;
}

TEST(FitNib, SpendsTheRateItIsNamedFor) {
  const Text text(1, 1.0f);
  for (const char* kv : {"nib2/nib1", "nib2.5/nib0.5", "nib4/nib2.125"}) {
    const Profile profile = fitted(text, nib(kv));
    const KvSpec spec = KvSpec::parse(kv);
    EXPECT_EQ(profile.nib, kv);
    EXPECT_EQ(total_nibbles(profile, &HeadProfile::key_nib), std::lround(2 * kDim * spec.k.rate / 4));
    EXPECT_EQ(total_nibbles(profile, &HeadProfile::value_nib), std::lround(2 * kDim * spec.v.rate / 4));
  }
}

TEST(FitNib, FitsOnlyWhatIsAskedFor) {
  const Profile profile = fitted(Text(1, 1.0f), nib("nib2/dense"));
  EXPECT_EQ(profile.nib, "nib2/dense");
  EXPECT_GT(profile.heads[0].key_nib.n_nibbles(), 0);
  EXPECT_EQ(profile.heads[0].value_nib, NibCode{});
}

TEST(FitNib, MoreBitsLeaveLessError) {
  const Text text(2, 1.0f), held_out(3, 1.0f);
  double before = 1e30;
  for (const char* kv : {"nib1/dense", "nib2/dense", "nib3/dense", "nib4/dense"}) {
    const double error = score_error(fitted(text, nib(kv)), held_out, 0);
    EXPECT_LT(error, 0.6 * before) << kv;
    before = error;
  }
}

// The head whose scores vary more gets more nibbles.
TEST(FitNib, NibblesGoWhereScoresAreLoud) {
  const Profile profile = fitted(Text(4, 3.0f), nib("nib2/dense"));
  EXPECT_GT(profile.heads[1].key_nib.n_nibbles(), profile.heads[0].key_nib.n_nibbles() + 2);
  NibOptions uniform = nib("nib2/dense");
  uniform.allocate = false;
  const Profile alike = fitted(Text(4, 3.0f), uniform);
  EXPECT_EQ(alike.heads[1].key_nib.n_nibbles(), alike.heads[0].key_nib.n_nibbles());
}

// A readout of four query heads: gain[h] times a diagonal that counts the channels from `first` on.
LayerReadout readout(const std::vector<float>& gain, int first) {
  LayerReadout out;
  out.d_v = kDim;
  for (float g : gain) {
    for (int i = 0; i < kDim * kDim; ++i) {
      out.metric.push_back(i % (kDim + 1) == 0 && i / kDim >= first ? g : 0.0f);
    }
  }
  return out;
}

// Squared error of rows of values that were not fitted to, of one head, over channels [first, end).
double value_error(const Profile& profile, const Text& text, int h, int first, int end) {
  const auto codec = make_value_codec(KvSpec::parse(profile.nib).v, kDim,
                                      &profile.heads[static_cast<size_t>(h)]);
  std::vector<uint8_t> block(codec->layout().bytes());
  std::vector<float> rows, row(kDim);
  for (int t = 0; t < kBlockTokens; ++t) {
    const float* v = text.v.data() + (t * 2 + h) * kDim;
    rows.insert(rows.end(), v, v + kDim);
  }
  codec->encode(rows.data(), ~uint64_t{0}, block.data());
  double sum = 0.0;
  for (int t = 0; t < kBlockTokens; ++t) {
    codec->decode(block.data(), t, row.data());
    for (int c = first; c < end; ++c) {
      sum += std::pow(rows[static_cast<size_t>(t * kDim + c)] - row[static_cast<size_t>(c)], 2);
    }
  }
  return sum;
}

// Values are coded for what W_O reads: the head it reads louder gets more nibbles, and channels that
// it does not read cost none.
TEST(FitNib, ValuesAreCodedForTheirReadout) {
  const Text text(11, 1.0f), held_out(12, 1.0f);
  const Profile plain = fitted(text, nib("dense/nib2"));
  const Profile loud = fitted(text, nib("dense/nib2"), 4096, readout({1.0f, 1.0f, 16.0f, 16.0f}, 0));
  EXPECT_GT(loud.heads[1].value_nib.n_nibbles(), loud.heads[0].value_nib.n_nibbles() + 4);
  EXPECT_EQ(total_nibbles(loud, &HeadProfile::value_nib), total_nibbles(plain, &HeadProfile::value_nib));
  const Profile half = fitted(text, nib("dense/nib2"), 4096, readout({1.0f, 1.0f, 1.0f, 1.0f}, kDim / 2));
  EXPECT_LT(value_error(half, held_out, 0, kDim / 2, kDim), 0.5 * value_error(plain, held_out, 0, kDim / 2, kDim));
  EXPECT_GT(value_error(half, held_out, 0, 0, kDim / 2), 2.0 * value_error(plain, held_out, 0, 0, kDim / 2));
  NibOptions off = nib("dense/nib2");
  off.readout_metric = false;
  EXPECT_EQ(fitted(text, off, 4096, readout({1.0f, 1.0f, 16.0f, 16.0f}, 0)).heads[1].value_nib,
            plain.heads[1].value_nib);
}

TEST(FitNib, AReadoutThatDoesNotFitIsNotTaken) {
  Calibrator calibrator({.n_samples = 512});
  calibrator.begin_chunk();
  calibrator.observe(Text(1, 1.0f).observation());
  EXPECT_TRUE(calibrator.set_readout(0, readout({1.0f, 1.0f, 1.0f, 1.0f}, 0)));
  EXPECT_FALSE(calibrator.set_readout(1, readout({1.0f, 1.0f, 1.0f, 1.0f}, 0)));
  EXPECT_FALSE(calibrator.set_readout(0, readout({1.0f, 1.0f, 1.0f}, 0)));
  LayerReadout other = readout({1.0f, 1.0f, 1.0f, 1.0f}, 0);
  other.d_v = kDim / 2;
  EXPECT_FALSE(calibrator.set_readout(0, other));
}

// An offset that all keys share is invisible to softmax: it must cost nothing.
TEST(FitNib, ASharedOffsetOfKeysCostsNothing) {
  const double without = score_error(fitted(Text(5, 1.0f), nib("nib2/dense")), Text(6, 1.0f), 0);
  const double with = score_error(fitted(Text(5, 1.0f, 20.0f), nib("nib2/dense")), Text(6, 1.0f, 20.0f), 0);
  EXPECT_NEAR(with, without, 0.1 * without);
}

TEST(FitNib, EachPartOfTheMethodHelps) {
  const Text text(7, 2.0f), held_out(8, 2.0f);
  const auto error = [&](const NibOptions& options) {
    const Profile profile = fitted(text, options);
    return score_error(profile, held_out, 0) + score_error(profile, held_out, 1);
  };
  const double all = error(nib("nib2/dense"));
  NibOptions changed = nib("nib2/dense");
  changed.key_reach = 0;
  EXPECT_GT(error(changed), 1.02 * all);
  changed = nib("nib2/dense");
  changed.max_group = 1;
  EXPECT_GT(error(changed), 1.2 * all);
  changed = nib("nib2/dense");
  changed.kv.k.side_basis = SideBasis::kRandom;
  EXPECT_GT(error(changed), 1.2 * all);
}

TEST(FitNib, SameWhateverTheNumberOfThreads) {
  const Text text(9, 1.5f);
  NibOptions one = nib("nib2/nib2"), two = one;
  two.n_threads = 2;
  const Profile a = fitted(text, one, 512), b = fitted(text, two, 512);
  for (size_t h = 0; h < a.heads.size(); ++h) {
    EXPECT_EQ(a.heads[h].key_nib, b.heads[h].key_nib);
    EXPECT_EQ(a.heads[h].value_nib, b.heads[h].value_nib);
  }
}

// A head whose keys and values never change has nothing to code, but its code must be one.
TEST(FitNib, AHeadWithoutVarianceIsCodedExactly) {
  Text text(11, 1.0f);
  for (int i = 0; i < kRows; ++i) {
    for (int c = 0; c < kDim; ++c) {
      text.k[static_cast<size_t>(2 * i * kDim + c)] = text.v[static_cast<size_t>(2 * i * kDim + c)] = 0.5f;
    }
  }
  const Profile profile = fitted(text, nib("nib2/nib2"), 512);
  EXPECT_EQ(profile.heads[0].key_nib.n_nibbles(), 1);
  EXPECT_NEAR(score_error(profile, text, 0), 0.0, 1e-9);
  EXPECT_GT(profile.heads[1].key_nib.n_nibbles(), 8);
}

TEST(FitNib, NeedsSamples) {
  const Text text(10, 1.0f);
  Calibrator calibrator;
  calibrator.observe(text.observation());
  Profile profile = calibrator.finish();
  EXPECT_THROW(calibrator.fit_nib(nib("nib2"), profile), Error);
}

}  // namespace
}  // namespace headq
