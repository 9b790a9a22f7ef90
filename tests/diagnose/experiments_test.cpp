// Each experiment on planted cases whose answer is known.

#include <gtest/gtest.h>

#include <cmath>
#include <random>
#include <vector>

#include "codec/sample_nib.h"
#include "core/error_of.h"
#include "diagnose/diagnosis.h"
#include "diagnose/planted.h"
#include "headq/error.h"

namespace headq {
namespace {

using testing::planted_head;
using testing::sample_nib;

// A head whose codecs have the given MSE and whose two queries' KL is `kl` times 0.9 and 1.1; the
// Fisher measure is the KL, and the output error ten times that.
class PlantedReadings {
 public:
  PlantedReadings(int layer, int n_group) {
    head_.layer = layer;
    head_.n_group = n_group;
    for (int g = 0; g < n_group; ++g) {
      head_.query_heads.insert(head_.query_heads.end(), 2, g);
      head_.entropies.insert(head_.entropies.end(), 2, 2.0);
    }
  }
  void add(const CodecSpec& spec, double bits, double mse, double kl) {
    head_.key_codecs.push_back({spec, spec.to_string(), bits});
    KeyReading reading;
    reading.mse = reading.relative_mse = mse;
    for (int g = 0; g < head_.n_group; ++g) {
      for (double size : {0.9 * kl, 1.1 * kl}) {
        reading.queries.push_back({{size, size, size}, 10 * size, false});
      }
    }
    head_.keys.push_back(reading);
  }
  void add_value(double mse, double weighted, double output_error) {
    head_.value_codecs.push_back({{}, "value", 2});
    ValueReading reading;
    reading.mse = reading.relative_mse = mse;
    reading.queries.assign(head_.query_heads.size(), {weighted, output_error});
    head_.values.push_back(reading);
  }
  HeadReadings& get() { return head_; }

 private:
  HeadReadings head_;
};

// Every codec of the metric experiments with KL and MSE in the same order, all at the same bits.
PlantedReadings ordered_readings(int layer = 0) {
  PlantedReadings out(layer, 1);
  double size = 1;
  for (const CodecSpec& spec : metric_key_specs()) {
    out.add(spec, 3.0, size, size);
    size *= 1.3;
  }
  return out;
}

TEST(Superiority, AMeasureThatIsTheHarmBeatsOneThatIsNoise) {
  std::vector<HeadReadings> heads;
  std::mt19937_64 random(1);
  std::lognormal_distribution<double> draw;
  for (int h = 0; h < 12; ++h) {
    PlantedReadings head(h / 2, 2);
    for (const CodecSpec& spec : metric_key_specs())
      head.add(spec, 3.0, draw(random), draw(random));
    for (int i = 0; i < 6; ++i) {
      const double error = draw(random);
      head.add_value(draw(random), 2 * error, error);
    }
    heads.push_back(head.get());
  }
  const Superiority found = metric_superiority(heads, {.n_replicates = 200});
  EXPECT_EQ(found.n_heads, 12u);
  EXPECT_EQ(found.n_layers, 6u);
  EXPECT_EQ(found.n_key_cells, 12 * 2 * metric_key_specs().size());
  EXPECT_EQ(found.n_value_cells, 12u * 2 * 6);
  for (const MetricTable* table : {&found.key_kl, &found.key_output, &found.values}) {
    const Correlation& mse = table->metrics.front();
    const Correlation& method = table->metrics.back();
    EXPECT_EQ(mse.metric, "mse");
    for (auto scope : {&Correlation::overall, &Correlation::equal_bits, &Correlation::within_layer,
                       &Correlation::layer_equal_bits, &Correlation::within_head}) {
      EXPECT_NEAR((method.*scope).value, 1.0, 1e-12);
      EXPECT_NEAR((method.*scope).low, 1.0, 1e-12);
      EXPECT_LT(std::fabs((mse.*scope).value), 0.25);
      EXPECT_LT((mse.*scope).low, (mse.*scope).high);
      EXPECT_NEAR((table->gain.*scope).value, 1.0 - (mse.*scope).value, 1e-12);
    }
    EXPECT_GT(table->chance, 0.0);
    EXPECT_LT(table->chance, 0.3);
  }
}

TEST(Superiority, CodecsAreMeansOverHeadsAndCellsNameThem) {
  // KL of codec c on head h is (c + 1) (h + 1), the same for both query heads of the group.
  const std::vector<CodecSpec> specs = metric_key_specs();
  std::vector<HeadReadings> heads;
  for (int h = 0; h < 3; ++h) {
    PlantedReadings head(h, 2);
    head.add(CodecSpec::parse("kivi8"), 8.5, 1.0, 1.0);  // not among the codecs compared
    for (size_t c = 0; c < specs.size(); ++c) {
      head.add(specs[c], 2.0 + h, 5.0, (c + 1.0) * (h + 1.0));
    }
    head.add_value(0.5, 0.25, 0.125 * (h + 1));
    heads.push_back(head.get());
  }
  const Superiority found = metric_superiority(heads, {.n_replicates = 20});
  ASSERT_EQ(found.key_codecs.size(), specs.size());
  for (size_t c = 0; c < specs.size(); ++c) {
    const KeyCodecFigures& codec = found.key_codecs[c];
    EXPECT_EQ(codec.codec, specs[c].to_string());
    EXPECT_DOUBLE_EQ(codec.bits, 3.0);
    EXPECT_DOUBLE_EQ(codec.mse.value, 5.0);
    EXPECT_EQ(codec.kl.n, 3u);
    EXPECT_NEAR(codec.kl.value, 2.0 * (c + 1.0), 1e-12);
    EXPECT_NEAR(codec.kl.error, (c + 1.0) / std::sqrt(3.0), 1e-12);
    EXPECT_NEAR(codec.fisher.value, codec.kl.value, 1e-12);
    EXPECT_NEAR(codec.output_error.value, 10 * codec.kl.value, 1e-11);
  }
  ASSERT_EQ(found.value_codecs.size(), 1u);
  EXPECT_NEAR(found.value_codecs[0].output_error.value, 0.25, 1e-12);
  EXPECT_DOUBLE_EQ(found.value_codecs[0].a2_mse.value, 0.25);
  ASSERT_EQ(found.key_cells.size(), found.n_key_cells);
  ASSERT_EQ(found.value_cells.size(), found.n_value_cells);
  for (const KeyCell& cell : found.key_cells) {
    EXPECT_NEAR(cell.kl, (cell.codec + 1.0) * (cell.layer + 1.0), 1e-12);
  }
}

TEST(Superiority, ScopesSeparateWhatDiffersBetweenGroups) {
  // Two heads a layer and two codecs a head. In a head and between the layers the measure orders
  // the harm the right way, between the heads of a layer the wrong way.
  std::vector<double> harm, measure;
  CellGroups groups;
  for (int layer = 0; layer < 5; ++layer) {
    for (int i = 0; i < 4; ++i) {
      harm.push_back(100 * layer + i);
      measure.push_back(100 * layer + (i + 2) % 4);
      groups.source.push_back(layer);
      groups.layer.push_back(layer);
      groups.head.push_back(2 * layer + i / 2);
      groups.rate.push_back(i % 2);
    }
  }
  const std::vector<Metric> metrics = {{"measure", measure}, {"harm", harm}};
  const MetricTable table =
      metric_table("harm", harm, metrics, 0, 1, groups, {.n_replicates = 100});
  const Correlation& found = table.metrics[0];
  EXPECT_GT(found.overall.value, 0.9);
  EXPECT_GT(found.equal_bits.value, 0.9);
  EXPECT_DOUBLE_EQ(found.within_layer.value, -0.6);  // ranks 3, 4, 1, 2
  EXPECT_DOUBLE_EQ(found.layer_equal_bits.value, -1.0);
  EXPECT_DOUBLE_EQ(found.within_head.value, 1.0);
  EXPECT_DOUBLE_EQ(table.gain.within_layer.value, 1.6);
}

TEST(Readings, ACellIsTheMeanOverTheQueriesOfItsHead) {
  PlantedReadings planted(5, 2);  // queries of the heads 0, 0, 1, 1
  planted.add(base_spec(), 2.5, 7, 1);
  planted.add_value(3, 1, 2);
  HeadReadings& head = planted.get();
  head.head = 1;
  for (size_t i = 0; i < 4; ++i) {
    const double x = static_cast<double>(1 << i);
    head.keys[0].queries[i] = {{x, 10 * x, 100 * x}, 1000 * x, false};
    head.values[0].queries[i] = {x, 10 * x};
  }
  const std::vector<CodecSpec> specs = {base_spec()};
  const std::vector<KeyCell> keys = key_cells(std::span(&head, 1), specs);
  ASSERT_EQ(keys.size(), 2u);
  EXPECT_EQ(keys[0].layer, 5);
  EXPECT_EQ(keys[0].head, 2);
  EXPECT_EQ(keys[1].head, 3);
  EXPECT_EQ(keys[1].mse, 7.0);
  EXPECT_EQ(keys[0].score_error, 1.5);
  EXPECT_EQ(keys[1].score_error, 6.0);
  EXPECT_EQ(keys[1].fisher, 60.0);
  EXPECT_EQ(keys[1].kl, 600.0);
  EXPECT_EQ(keys[1].output_error, 6000.0);
  const std::vector<ValueCell> values = value_cells(std::span(&head, 1));
  ASSERT_EQ(values.size(), 2u);
  EXPECT_EQ(values[0].weighted, 1.5);
  EXPECT_EQ(values[1].output_error, 60.0);
}

TEST(Superiority, CodesOfNibCountWhereBitsNeedNotBeEqual) {
  // nib does the most harm with the least storage error, at bits of its own in each head.
  std::vector<HeadReadings> plain, with;
  for (int h = 0; h < 4; ++h) {
    PlantedReadings head = ordered_readings(h);
    for (int i = 1; i <= 3; ++i) head.add_value(i, i, i);
    plain.push_back(head.get());
    for (const char* nib : {"nib2", "nib3"}) {
      head.add(CodecSpec::parse(nib), 3.0, 0.5, 1e9);
    }
    with.push_back(head.get());
  }
  const BootstrapOptions options = {.n_replicates = 20};
  const auto mse = [&](const std::vector<HeadReadings>& heads) {
    return metric_superiority(heads, options).key_kl.metrics.front();
  };
  EXPECT_NEAR(mse(plain).overall.value, 1.0, 1e-12);
  EXPECT_LT(mse(with).overall.value, 0.9);
  EXPECT_LT(mse(with).within_head.value, 0.9);
  EXPECT_NEAR(mse(with).equal_bits.value, 1.0, 1e-12);
  EXPECT_NEAR(mse(with).layer_equal_bits.value, 1.0, 1e-12);
}

TEST(Superiority, RefusesAHeadWithoutItsCodecs) {
  PlantedReadings head(0, 1);
  head.add(CodecSpec::parse("kivi2"), 2.5, 1, 1);
  const std::vector<HeadReadings> heads = {head.get()};
  EXPECT_ERROR(metric_superiority(heads, {}), ErrorCode::kInvalidArgument, "was not read");
}

TEST(Counterexamples, FindsThePlantedOneAndNoOther) {
  std::vector<HeadReadings> heads = {ordered_readings(3).get(), ordered_readings(4).get()};
  const size_t n = metric_key_specs().size();
  const Counterexamples none = find_counterexamples(heads);
  EXPECT_EQ(none.by_mse.n_pairs, 2 * n * (n - 1) / 2);
  EXPECT_EQ(none.by_mse.n_reversed, 0u);
  EXPECT_TRUE(none.shown.empty());

  // The MSE of two neighbours of one head changes places, their harm stays.
  std::swap(heads[1].keys[5].mse, heads[1].keys[6].mse);
  const Counterexamples one = find_counterexamples(heads);
  EXPECT_EQ(one.by_mse.n_reversed, 1u);
  EXPECT_EQ(one.by_fisher.n_reversed, 0u);
  EXPECT_EQ(one.by_fisher.n_pairs, 2 * n * (n - 1) / 2);
  ASSERT_EQ(one.by_mse.n_significant, 1u);
  ASSERT_EQ(one.shown.size(), 1u);
  const Counterexample& e = one.shown[0];
  EXPECT_EQ(e.layer, 4);
  EXPECT_EQ(e.stored_better, heads[1].key_codecs[6].name);
  EXPECT_EQ(e.read_better, heads[1].key_codecs[5].name);
  EXPECT_LT(e.mse[0], e.mse[1]);
  EXPECT_NEAR(e.kl[0] / e.kl[1], 1.3, 1e-12);
  EXPECT_GT(e.kl_difference.value, 2 * e.kl_difference.error);
}

TEST(Counterexamples, ACodeOfNibIsAPairWhereItsBitsAreThoseOfAnother) {
  const auto n_reversed = [](double bits) {
    PlantedReadings head = ordered_readings();
    head.add(CodecSpec::parse("nib3"), bits, 0.5, 1e9);
    const std::vector<HeadReadings> heads = {head.get()};
    return find_counterexamples(heads).by_mse.n_reversed;
  };
  EXPECT_EQ(n_reversed(3.0), metric_key_specs().size());
  EXPECT_EQ(n_reversed(3.0625), 0u);
}

TEST(Counterexamples, UnequalBitsAreNoPairAndNoiseIsNotSignificant) {
  std::vector<HeadReadings> heads = {ordered_readings().get()};
  std::swap(heads[0].keys[5].mse, heads[0].keys[6].mse);
  heads[0].key_codecs[5].bits = 4.0;
  EXPECT_EQ(find_counterexamples(heads).by_mse.n_reversed, 0u);
  heads[0].key_codecs[5].bits = 3.0;
  heads[0].keys[6].queries[0].scores.kl *= 8;  // one query carries the difference
  EXPECT_EQ(find_counterexamples(heads).by_mse.n_reversed, 1u);
  EXPECT_EQ(find_counterexamples(heads).by_mse.n_significant, 0u);
}

TEST(NullSpace, OnlyFixedGridsSeeTheSharedVector) {
  std::vector<NullSpaceHead> heads;
  for (uint64_t seed : {1, 2, 3}) {
    heads.push_back(null_space_head(planted_head(
        {.n_tokens = 256, .n_queries = 4, .key_mean = 1, .scale = 0.2f, .seed = seed})));
  }
  const NullSpace found = null_space(heads);
  for (double kl : found.dense_kl) EXPECT_LT(kl, 1e-10);
  ASSERT_EQ(found.rows.size(), null_space_codecs().size() * kShiftMultiples.size());
  for (const NullSpaceRow& row : found.rows) {
    EXPECT_GT(row.kl.value, 1e-5) << row.codec;
    const double ratio = row.kl_ratio.value;
    const std::string what = row.codec + " at " + std::to_string(row.multiple);
    if (row.multiple == 0) {
      EXPECT_DOUBLE_EQ(ratio, 1.0) << what;
    } else if (row.codec.starts_with("kivi")) {
      EXPECT_NEAR(ratio, 1.0, 0.05) << what;
    } else if (row.codec.ends_with("c")) {
      EXPECT_NEAR(ratio, 1.0, 0.02) << what;
    } else if (row.multiple == 8) {
      EXPECT_GT(ratio, 10.0) << what;
    } else if (row.multiple == -1) {
      EXPECT_LT(ratio, 0.9) << what;
    }
  }
}

TEST(NullSpace, WithoutAMeanAGridIsItsCentredSelf) {
  const NullSpaceHead head = null_space_head(
      planted_head({.n_tokens = 256, .n_queries = 4, .key_mean = 1, .scale = 0.2f}));
  const auto codecs = null_space_codecs();
  const auto at = [&](const char* name) {
    return static_cast<size_t>(std::find(codecs.begin(), codecs.end(), name) - codecs.begin());
  };
  EXPECT_NEAR(head.kl[at("token2")][0], head.kl[at("token2c")][0], 0.01 * head.kl[at("token2")][0]);
  EXPECT_LT(head.kl[at("token2")][0], head.kl[at("token2")][1]);
}

TEST(Deployability, TheAxisOfTheQueriesIsFoundAndRandomOnesMissIt) {
  std::vector<DeployabilityHead> heads;
  for (uint64_t seed : {1, 2, 3, 4}) {
    const HeadSample sample =
        planted_head({.n_tokens = 256, .n_queries = 6, .query_axis = 11, .seed = seed});
    heads.push_back(deployability_head(DenseAttention(sample)));
  }
  const Deployability found = deployability(heads, {.n_replicates = 100});
  ASSERT_EQ(found.rows.size(), kSideRanks.size());
  const DeployabilityRow& first = found.rows.front();
  EXPECT_EQ(first.rank, 1);
  const auto& [query, oracle, key, random] = first.sources;
  EXPECT_EQ(query.source, BasisSource::kQuery);
  EXPECT_EQ(random.source, BasisSource::kRandom);
  // Four more bits for the one coordinate that is read: an error of 1/15 of its kivi2 error's
  // range.
  EXPECT_LT(query.kl_ratio.value, 0.02);
  EXPECT_DOUBLE_EQ(query.kl_ratio.value, oracle.kl_ratio.value);  // calibrated on the same chunks
  EXPECT_GT(random.kl_ratio.value, 0.8);
  EXPECT_GT(key.kl_ratio.value, 0.5);
  EXPECT_EQ(random.query_wins.value, 1.0);
  EXPECT_DOUBLE_EQ(first.reached.value, 1.0);
  for (size_t r = 1; r < found.rows.size(); ++r) {
    EXPECT_GT(found.rows[r].bits, found.rows[r - 1].bits);
  }
}

TEST(Direction, OrdersRightNoneWrong) {
  std::vector<HeadReadings> heads;
  for (int h = 0; h < 4; ++h) {
    PlantedReadings head(h, 1);
    head.add(base_spec(), 2.5, 1, 1);
    head.add(right_sign_spec(), 2.8, 1, h == 0 ? 2 : 0.5);  // one head is worse for it
    head.add(wrong_sign_spec(), 2.8, 1, h == 1 ? 0.9 : 4);  // and one not worse for the opposite
    heads.push_back(head.get());
  }
  const Direction found = direction(heads);
  EXPECT_EQ(found.right.codec, "kivi2+hq4x4");
  EXPECT_EQ(found.wrong.codec, "kivi2-hq4x4");
  EXPECT_DOUBLE_EQ(found.ordered.value, 0.5);
  EXPECT_DOUBLE_EQ(found.none.kl_ratio.value, 1.0);
  EXPECT_NEAR(found.wrong.kl_ratio.value, std::pow(64 * 0.9, 0.25), 1e-12);
  EXPECT_NEAR(found.right.kl_ratio.value, std::pow(2 * 0.125, 0.25), 1e-12);
}

TEST(Direction, TheWrongSignHarmsARealHead) {
  const HeadSample sample = planted_head({.n_tokens = 256, .scale = 0.2f});
  const std::vector<CodecSpec> specs = {base_spec(), right_sign_spec(), wrong_sign_spec()};
  const std::vector<HeadReadings> heads = {read_head(DenseAttention(sample), specs, {})};
  EXPECT_EQ(direction(heads).ordered.value, 1.0);
}

// Adds the codecs of the route flips to a head with n queries of entropy 0.5 (low) and 2 (middle).
HeadReadings flip_head(int layer, int n_low, int n_low_flipped, double flipped_fisher) {
  HeadReadings head;
  head.layer = layer;
  for (int i = 0; i < 40; ++i) {
    head.query_heads.push_back(0);
    head.entropies.push_back(i < n_low ? 0.5 : 2.0);
  }
  for (const CodecSpec& spec : route_flip_specs()) {
    head.key_codecs.push_back({spec, spec.to_string(), 3});
    KeyReading reading;
    for (int i = 0; i < 40; ++i) {
      const bool flipped = i < n_low_flipped;
      const double kl = flipped ? 2.0 : 0.01 * (i + 1);
      reading.queries.push_back({{0, flipped ? flipped_fisher : kl, kl}, kl, flipped});
    }
    head.keys.push_back(reading);
  }
  return head;
}

TEST(RouteFlips, SplitsTheDamageAndNamesTheLayer) {
  const std::vector<HeadReadings> heads = {flip_head(2, 20, 10, 0.5), flip_head(7, 20, 0, 0)};
  const RouteFlips found = route_flips(heads, {.n_replicates = 100});
  const size_t n_codecs = route_flip_specs().size();
  EXPECT_EQ(found.n_cases, 80 * n_codecs);
  ASSERT_EQ(found.regimes.size(), 6u);
  const Regime& low_kept = found.regimes[0];
  const Regime& low_flipped = found.regimes[1];
  EXPECT_EQ(low_flipped.entropy, "low");
  EXPECT_EQ(low_flipped.route, "flipped");
  EXPECT_EQ(low_flipped.n_cases, 10 * n_codecs);
  EXPECT_DOUBLE_EQ(low_flipped.share.value, 10.0 / 80);
  EXPECT_DOUBLE_EQ(low_flipped.kl.value, 2.0);
  EXPECT_DOUBLE_EQ(low_flipped.fisher_over_kl.value, 0.25);
  const double rest = 8.2 - 0.55;  // KL of the first head's other queries
  EXPECT_NEAR(low_flipped.damage_share.value, 20 / (20 + rest + 8.2), 1e-12);
  EXPECT_DOUBLE_EQ(low_kept.fisher_over_kl.value, 1.0);
  EXPECT_NEAR(low_kept.correlation.value, 1.0, 1e-12);
  double share = 0, damage = 0;
  for (const Regime& regime : found.regimes) {
    share += regime.share.value;
    damage += std::isnan(regime.damage_share.value) ? 0 : regime.damage_share.value;
  }
  EXPECT_NEAR(share, 1.0, 1e-12);
  EXPECT_NEAR(damage, 1.0, 1e-12);
  ASSERT_EQ(found.layers.size(), 2u);
  EXPECT_EQ(found.layers[0].layer, 2);
  EXPECT_TRUE(found.layers[0].has_low_entropy_regime);
  EXPECT_FALSE(found.layers[1].has_low_entropy_regime);
}

TEST(RouteFlips, FlipsThatFisherMeasuresWellAreNoRegimeOfTheirOwn) {
  const std::vector<HeadReadings> heads = {flip_head(0, 20, 10, 1.9)};
  EXPECT_FALSE(route_flips(heads, {.n_replicates = 100}).layers[0].has_low_entropy_regime);
}

TEST(RouteFlips, ReadThroughNib2WhereItWasFitted) {
  HeadReadings head = flip_head(0, 20, 2, 0.1);
  const size_t n_cases = route_flips(std::vector{head}, {.n_replicates = 20}).n_cases;
  for (const char* name : {"nib2", "nib3"}) {
    head.key_codecs.push_back({CodecSpec::parse(name), name, 2});
    head.keys.push_back(head.keys.front());
  }
  const RouteFlips found = route_flips(std::vector{head}, {.n_replicates = 20});
  EXPECT_EQ(found.n_cases, n_cases + 40);
  EXPECT_EQ(found.codecs.back(), "nib2");
}

TEST(RouteFlips, AHandfulOfQueriesHasNoInterval) {
  const std::vector<HeadReadings> heads = {flip_head(0, 20, 2, 0.1)};
  const LayerRoutes layer = route_flips(heads, {.n_replicates = 100}).layers[0];
  EXPECT_NEAR(layer.low_entropy_flipped.fisher_over_kl.value, 0.05, 1e-12);
  EXPECT_TRUE(std::isnan(layer.low_entropy_flipped.fisher_over_kl.high));
  EXPECT_FALSE(layer.has_low_entropy_regime);
}

TEST(Diagnosis, DoesNotDependOnThreads) {
  std::vector<HeadSample> samples;
  for (int h = 0; h < 6; ++h) {
    samples.push_back(planted_head({.n_tokens = 192,
                                    .n_group = 2,
                                    .n_queries = 3,
                                    .key_mean = 0.1f,
                                    .scale = 0.2f,
                                    .seed = static_cast<uint64_t>(h + 1)}));
    samples.back().layer = h;
  }
  size_t steps = 0;
  const auto run = [&](int n_threads) {
    DiagnosisOptions options;
    options.bootstrap.n_threads = n_threads;
    options.bootstrap.n_replicates = 20;
    options.progress = [&](size_t done, size_t total) {
      ++steps;
      EXPECT_LE(done, total);
    };
    return diagnose(samples, options);
  };
  const Diagnosis one = run(1), two = run(2);
  EXPECT_GE(steps, 12u);
  EXPECT_EQ(one.n_heads, 6u);
  EXPECT_EQ(one.n_queries, 36u);
  EXPECT_EQ(one.floor.identity_kl, 0.0);
  EXPECT_GT(one.floor.f16_kl.value, 0.0);
  EXPECT_LT(one.floor.f16_kl.value, 1e-5);
  EXPECT_EQ(one.superiority.key_kl.gain.overall.low, two.superiority.key_kl.gain.overall.low);
  EXPECT_EQ(one.direction.right.kl.value, two.direction.right.kl.value);
  EXPECT_EQ(one.null_space.rows[3].kl.value, two.null_space.rows[3].kl.value);
  EXPECT_EQ(one.deployability.rows[2].reached.high, two.deployability.rows[2].reached.high);
  EXPECT_EQ(one.route_flips.all.correlation.low, two.route_flips.all.correlation.low);
}

TEST(Readings, ACodeOfNibIsTheOneOfItsRate) {
  HeadSample sample = planted_head({.n_tokens = 256, .scale = 0.2f});
  const CodecSpec nib2 = CodecSpec::parse("nib2"), nib3 = CodecSpec::parse("nib3");
  sample.codes = {{nib2, sample_nib(32, 16, 2, 1), sample_nib(32, 12, 2, 2)},
                  {nib3, sample_nib(32, 24, 1, 3), sample_nib(32, 20, 1, 4)}};
  const DenseAttention dense(sample);
  const std::vector<CodecSpec> specs = {nib2, nib3};
  const HeadReadings head = read_head(dense, specs, specs);
  EXPECT_DOUBLE_EQ(head.key_codecs[0].bits, 2.0);
  EXPECT_DOUBLE_EQ(head.key_codecs[1].bits, 3.0);
  EXPECT_DOUBLE_EQ(head.value_codecs[0].bits, 1.5);
  EXPECT_DOUBLE_EQ(head.value_codecs[1].bits, 2.5);
  HeadProfile profile = sample.profile;
  profile.key_nib = sample.codes[1].key;
  EXPECT_EQ(head.keys[1].mse, dense.read_keys(nib3, profile).mse);
  EXPECT_NE(head.keys[0].mse, head.keys[1].mse);
  EXPECT_ERROR(read_head(dense, std::vector{CodecSpec::parse("nib4")}, {}),
               ErrorCode::kInvalidArgument, "no code was fitted for 'nib4'");
}

TEST(Diagnosis, NeedsSamples) {
  EXPECT_ERROR(diagnose({}, {}), ErrorCode::kInvalidArgument, "no head");
}

}  // namespace
}  // namespace headq
