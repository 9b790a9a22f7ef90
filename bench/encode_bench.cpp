#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <memory>
#include <span>

#include "bench/benchmarks.h"
#include "bench/workload.h"
#include "codec/codec.h"
#include "codec/nib_profile.h"
#include "headq/spec.h"
#include "oracle/nib.h"

namespace headq::bench {
namespace {

constexpr int kBlocks = 16;  // coded in turn

struct Case {
  std::string codec;
  bool is_key = true;
  int d = 64;
  Isa isa = Isa::kScalar;
};

// The rows and the codec of a side of one head.
struct Side {
  std::vector<float> rows;  // [kBlocks * 64][d]
  Profile profile;
  std::unique_ptr<Codec> codec;

  const NibCode& nib(bool is_key) const {
    return is_key ? profile.heads[0].key_nib : profile.heads[0].value_nib;
  }
};

Side make_side(const Case& c) {
  const LayerShape shape{.n_head_kv = 1, .d_k = c.d, .d_v = c.d};
  const Workload text(shape, kBlocks * kBlockTokens, 1);
  const CodecSpec spec = CodecSpec::parse(c.codec);
  Side side{.rows = c.is_key ? text.keys : text.values,
            .profile = fitted_profile(shape, c.is_key ? c.codec + "/dense" : "dense/" + c.codec),
            .codec = nullptr};
  setenv("HEADQ_ISA", std::string(isa_name(c.isa)).c_str(), 1);  // read when the codec is made
  const HeadProfile& head = side.profile.heads[0];
  side.codec =
      c.is_key ? make_key_codec(spec, c.d, &head, 0, 0) : make_value_codec(spec, c.d, &head);
  unsetenv("HEADQ_ISA");
  return side;
}

// rms over the rows of a block of what they are decoded to, minus wanted, relative to the rows.
template <typename Wanted>
double decode_error(const Side& side, int d, const uint8_t* block, Wanted wanted) {
  double error = 0.0, power = 0.0;
  std::vector<float> row(static_cast<size_t>(d));
  for (int t = 0; t < kBlockTokens; ++t) {
    side.codec->decode(block, t, row.data());
    const std::span exact(side.rows.data() + static_cast<size_t>(t * d), static_cast<size_t>(d));
    const std::vector<double> goal = wanted(std::vector<double>(exact.begin(), exact.end()));
    for (size_t i = 0; i < row.size(); ++i) {
      error += std::pow(static_cast<double>(row[i]) - goal[i], 2);
      power += std::pow(static_cast<double>(exact[i]), 2);
    }
  }
  return std::sqrt(error / power);
}

void run(benchmark::State& state, const Case& c, const Side& side) {
  const size_t block_floats = static_cast<size_t>(kBlockTokens * c.d);
  std::vector<uint8_t> block(side.codec->layout().bytes());
  size_t i = 0;
  for (auto _ : state) {
    side.codec->encode(side.rows.data() + i++ % kBlocks * block_floats, ~uint64_t{0}, block.data());
    benchmark::ClobberMemory();
  }
  using benchmark::Counter;
  state.counters[kNsPerRow] =
      Counter(kBlockTokens * 1e-9, Counter::kIsIterationInvariantRate | Counter::kInvert);
  state.counters[kBytesPerToken] = static_cast<double>(block.size()) / kBlockTokens;
  side.codec->encode(side.rows.data(), ~uint64_t{0}, block.data());
  state.counters[kError] =
      decode_error(side, c.d, block.data(), [](const auto& row) { return row; });
  if (!CodecSpec::parse(c.codec).is_nib()) return;
  const oracle::Nib code = testing::oracle_nib(side.nib(c.is_key));
  state.counters[kRoundingError] = decode_error(
      side, c.d, block.data(), [&](const auto& row) { return oracle::nib_row(code, row); });
}

void add(const Case& c) {
  const std::string name = fmt::format("encode/{}:{}/d{}/-/{}/t1", c.is_key ? "keys" : "values",
                                       c.codec, c.d, isa_name(c.isa));
  const auto side = std::make_shared<std::unique_ptr<Side>>();  // made when it first runs
  benchmark::RegisterBenchmark(name.c_str(), [c, side](benchmark::State& state) {
    if (*side == nullptr) *side = std::make_unique<Side>(make_side(c));
    run(state, c, **side);
  })->Unit(benchmark::kMicrosecond);
}

}  // namespace

void register_encode(const BenchOptions& options) {
  const std::vector<Isa> isas = available_isas();
  for (int d : kHeadDims) {
    for (Isa isa : isas) {
      if (!options.all && isa != isas.back() && d != kHeadDims[0]) continue;
      for (const char* codec : {"nib2.5", "kivi2", "kivi2+hq4x4"}) add({codec, true, d, isa});
      for (const char* codec : {"nib2", "kivi2"}) add({codec, false, d, isa});
    }
  }
}

}  // namespace headq::bench
