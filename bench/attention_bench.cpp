#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "bench/benchmarks.h"
#include "bench/f16_attention.h"
#include "bench/packed_attention.h"
#include "headq/spec.h"
#include "oracle/attention.h"

// Whole attention ops over a packed cache, and their parts: an op whose other side is next to
// nothing (16 channels in one nibble) is the scan of keys or the value pass, with both so it is the
// softmax. Beside each whole op ggml's own over f16, some of its runs between those of the op.

namespace headq::bench {
namespace {

constexpr int kHeadsKv = 2;
constexpr int kTinyDim = 16;
constexpr const char* kTinyCodec = "nib0.25";
constexpr int kPromptRows = 128;
constexpr int kRunsPerPair = 8;  // decoding: ops between two of ggml's

struct Case {
  std::string what;  // decode, prompt, memory, keys, softmax, values
  std::string kv;    // "K/V", "f16"
  LayerShape shape;
  int group = 1;
  int n_rows = 1;
  Isa isa = Isa::kScalar;
  int n_threads = 1;

  int n_head() const { return group * shape.n_head_kv; }
  bool has_twin() const { return what == "decode" || what == "prompt"; }
};

// What is made once and used by many benchmarks.
class Store {
 public:
  explicit Store(const BenchOptions& options) : options_(options) {}

  // True the first time.
  bool take_name(const std::string& name) { return names_.insert(name).second; }

  const Workload& text(const LayerShape& shape) {
    auto& text = texts_[key(shape)];
    if (text == nullptr) text = std::make_unique<Workload>(shape, options_.depth, 1);
    return *text;
  }

  PackedCaches& packed(const LayerShape& shape, const std::string& kv) {
    auto& caches = packed_[fmt::format("{} {}", key(shape), kv)];
    if (caches == nullptr) {
      caches = std::make_unique<PackedCaches>(text(shape), kv, options_.n_layers);
    }
    return *caches;
  }

  F16Caches& f16(const LayerShape& shape) {
    auto& caches = f16_[key(shape)];
    if (caches == nullptr) caches = std::make_unique<F16Caches>(text(shape), options_.n_layers);
    return *caches;
  }

 private:
  static std::string key(const LayerShape& s) {
    return fmt::format("{} {} {}", s.n_head_kv, s.d_k, s.d_v);
  }

  BenchOptions options_;
  std::set<std::string> names_;
  std::map<std::string, std::unique_ptr<Workload>> texts_;
  std::map<std::string, std::unique_ptr<PackedCaches>> packed_;
  std::map<std::string, std::unique_ptr<F16Caches>> f16_;
};

using Doubles = std::vector<double>;

// The exact rows of a KV head.
oracle::Head exact_rows(const Workload& text, int h) {
  oracle::Head out;
  const auto side = [&](const std::vector<float>& rows, int d, std::vector<Doubles>& into) {
    for (int t = 0; t < text.n_tokens; ++t) {
      const float* row =
          rows.data() + (static_cast<size_t>(t) * static_cast<size_t>(text.shape.n_head_kv) +
                         static_cast<size_t>(h)) *
                            static_cast<size_t>(d);
      into.emplace_back(row, row + d);
    }
  };
  side(text.keys, text.shape.d_k, out.keys);
  side(text.values, text.shape.d_v, out.values);
  return out;
}

// The rows that the codes of a KV head stand for.
oracle::Head coded_rows(LayerCache& cache, int h) {
  oracle::Head out;
  const auto side = [&](const SideStore& store, std::vector<Doubles>& into) {
    std::vector<float> row(static_cast<size_t>(store.head_dim()));
    for (int t = 0; t < cache.n_cells(); ++t) {
      store.get_head(cache.block_of(t), h, cache.slot_of(t), row.data());
      into.emplace_back(row.begin(), row.end());
    }
  };
  side(cache.keys(), out.keys);
  side(cache.values(), out.values);
  return out;
}

// What the newest query row's heads read, in double precision: [n_head][d_v].
template <typename RowsOf>
Doubles oracle_output(const Workload& text, int group, int n_rows, RowsOf rows_of) {
  const std::vector<float> queries = text.queries(n_rows, group, kQuerySeed);
  const size_t d = static_cast<size_t>(text.shape.d_k);
  const float* q = queries.data() + queries.size() - static_cast<size_t>(group) * text.key_row();
  Doubles out;
  for (int h = 0; h < text.shape.n_head_kv; ++h) {
    const oracle::Head head = rows_of(h);
    const Doubles seen(static_cast<size_t>(text.n_tokens), 0.0);
    for (int g = 0; g < group; ++g, q += d) {
      const Doubles row =
          oracle::attend(Doubles(q, q + d), head, seen,
                         {.scale = static_cast<double>(text.scale())}, text.shape.d_v);
      out.insert(out.end(), row.begin(), row.end());
    }
  }
  return out;
}

// rms of the difference over the rms of scale; got: the outputs of all rows, the newest last.
template <typename Got>
double relative_error(const Got& got, const Doubles& wanted, const Doubles& scale) {
  double error = 0.0, power = 0.0;
  const size_t first = got.size() - wanted.size();
  for (size_t i = 0; i < wanted.size(); ++i) {
    error += std::pow(static_cast<double>(got[first + i]) - wanted[i], 2);
    power += scale[i] * scale[i];
  }
  return std::sqrt(error / power);
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  const size_t half = x.size() / 2;
  return x.size() % 2 == 1 ? x[half] : 0.5 * (x[half - 1] + x[half]);
}

// Times are means over the iterations of a run.
void set_speed(benchmark::State& state, const Case& c, double seconds, double bytes_per_token,
               int n_tokens) {
  const double tokens = static_cast<double>(n_tokens);
  const double rows = static_cast<double>(c.n_rows);
  state.counters[kNsPerTokenHead] = seconds * 1e9 / (tokens * rows * c.n_head());
  state.counters[kBytesPerToken] = bytes_per_token;
  if (c.n_rows == 1) {
    state.counters[kGigabytesPerSecond] =
        bytes_per_token * tokens * c.shape.n_head_kv / seconds * 1e-9;
  }
}

void run_packed(benchmark::State& state, const Case& c, Store& store) {
  PackedCaches& caches = store.packed(c.shape, c.kv);
  const Workload& text = caches.text();
  PackedAttention op(caches, c.group, c.n_rows, c.isa);
  std::optional<F16Attention> twin;
  if (c.has_twin()) twin.emplace(store.f16(c.shape), c.group, c.n_rows);
  const int n_layers = caches.n_layers();
  for (int i = 0; i < (c.n_rows == 1 ? n_layers : 1); ++i) {  // to warm up
    op.run(i, c.n_threads);
    if (twin) twin->run(i, c.n_threads);
  }
  const int every = c.n_rows == 1 ? kRunsPerPair : 1;
  double total = 0.0;
  std::vector<double> ratios;
  int i = 0;
  for (auto _ : state) {
    const double seconds = op.run(i % n_layers, c.n_threads);
    state.SetIterationTime(seconds);
    total += seconds;
    if (twin && i % every == 0) ratios.push_back(twin->run(i % n_layers, c.n_threads) / seconds);
    ++i;
  }
  set_speed(state, c, total / i, caches.bytes_per_token(), text.n_tokens);
  if (twin) state.counters[kTimesF16] = median(ratios);

  const Doubles exact =
      oracle_output(text, c.group, c.n_rows, [&](int h) { return exact_rows(text, h); });
  op.run(0, c.n_threads);
  const Doubles coded =
      oracle_output(text, c.group, c.n_rows, [&](int h) { return coded_rows(caches.layer(0), h); });
  state.counters[kError] = relative_error(op.output(), exact, exact);
  state.counters[kRoundingError] = relative_error(op.output(), coded, exact);
}

// The least time that any op over these codes could take.
void run_memory(benchmark::State& state, const Case& c, Store& store) {
  PackedCaches& caches = store.packed(c.shape, c.kv);
  caches.read(0, c.n_threads);
  double total = 0.0;
  int i = 0;
  for (auto _ : state) {
    const double seconds = caches.read(i % caches.n_layers(), c.n_threads);
    state.SetIterationTime(seconds);
    total += seconds;
    ++i;
  }
  set_speed(state, c, total / i, caches.bytes_per_token(), caches.text().n_tokens);
}

void run_f16(benchmark::State& state, const Case& c, Store& store) {
  F16Caches& caches = store.f16(c.shape);
  const Workload& text = caches.text();
  F16Attention op(caches, c.group, c.n_rows);
  for (int i = 0; i < (c.n_rows == 1 ? caches.n_layers() : 1); ++i) op.run(i, c.n_threads);
  double total = 0.0;
  int i = 0;
  for (auto _ : state) {
    const double seconds = op.run(i % caches.n_layers(), c.n_threads);
    state.SetIterationTime(seconds);
    total += seconds;
    ++i;
  }
  set_speed(state, c, total / i, 2.0 * (c.shape.d_k + c.shape.d_v), text.n_tokens);
  const Doubles exact =
      oracle_output(text, c.group, c.n_rows, [&](int h) { return exact_rows(text, h); });
  state.counters[kError] = relative_error(op.output(), exact, exact);
}

std::string name_of(const Case& c) {
  std::string kv = c.kv;
  std::replace(kv.begin(), kv.end(), '/', ':');
  const int d = std::max(c.shape.d_k, c.shape.d_v);
  if (c.kv == "f16") return fmt::format("{}/f16/d{}/q{}/ggml/t{}", c.what, d, c.group, c.n_threads);
  return fmt::format("{}/{}/d{}/q{}/{}/t{}", c.what, kv, d, c.group, isa_name(c.isa), c.n_threads);
}

void add(const Case& c, const std::shared_ptr<Store>& store) {
  if (!store->take_name(name_of(c))) return;  // codecs may share a side
  const auto run = c.kv == "f16" ? run_f16 : c.what == "memory" ? run_memory : run_packed;
  benchmark::RegisterBenchmark(name_of(c).c_str(),
                               [c, store, run](benchmark::State& state) { run(state, c, *store); })
      ->UseManualTime()
      ->Unit(benchmark::kMicrosecond);
}

// The op of a codec and the parts of it.
void add_codec(Case c, const std::string& kv, bool parts, const std::shared_ptr<Store>& store) {
  const KvSpec spec = KvSpec::parse(kv);
  const int d = c.shape.d_k;
  c.what = "decode";
  c.kv = kv;
  add(c, store);
  if (c.isa == available_isas().back()) {
    c.what = "memory";
    add(c, store);
  }
  if (!parts) return;
  c.what = "keys";
  c.kv = fmt::format("{}/{}", spec.k.to_string(), kTinyCodec);
  c.shape.d_v = kTinyDim;
  add(c, store);
  c.what = "values";
  c.kv = fmt::format("{}/{}", kTinyCodec, spec.v.to_string());
  c.shape.d_k = kTinyDim;
  c.shape.d_v = d;
  add(c, store);
}

void add_softmax(Case c, const std::shared_ptr<Store>& store) {
  c.what = "softmax";
  c.kv = fmt::format("{0}/{0}", kTinyCodec);
  c.shape.d_k = c.shape.d_v = kTinyDim;
  add(c, store);
}

// Query heads per KV head that a model of this head_dim has: SmolLM2, Qwen2.5, Gemma 3.
int usual_group(int d) { return d == 64 ? 3 : d == 128 ? 6 : 4; }

}  // namespace

void register_attention(const BenchOptions& options) {
  const auto store = std::make_shared<Store>(options);
  const std::vector<Isa> isas = available_isas();
  for (int d : kHeadDims) {
    for (int group : {1, 3, 4, 6}) {
      for (int threads : {1, 2}) {
        // The choice: a model's shape, at the best level and on one thread alone also at lesser
        // ones.
        const bool usual = group == usual_group(d);
        if (!options.all && !usual) continue;
        Case c{.what = "decode",
               .kv = "f16",
               .shape = {.n_head_kv = kHeadsKv, .d_k = d, .d_v = d},
               .group = group,
               .n_threads = threads};
        add(c, store);
        for (Isa isa : isas) {
          c.isa = isa;
          const bool best = isa == isas.back();
          if (!options.all && !best && (threads > 1 || d != kHeadDims[0])) continue;
          for (const char* kv : kCodecs) add_codec(c, kv, options.all || threads == 1, store);
          if (d == kHeadDims[0] && (options.all || threads == 1)) add_softmax(c, store);
        }
        if (threads == 1) continue;
        c.what = "prompt";
        c.n_rows = kPromptRows;
        c.isa = isas.back();
        for (const char* kv : kCodecs) {
          c.kv = kv;
          add(c, store);
        }
      }
    }
  }
}

}  // namespace headq::bench
