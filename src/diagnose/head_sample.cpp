#include "diagnose/head_sample.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "codec/codec.h"
#include "headq/error.h"

namespace headq {
namespace {

void check_span(size_t size, size_t wanted, const char* what) {
  if (size == wanted) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("observation: {} has {} floats, its shape says {}", what, size, wanted));
}

void check_spans(const Observation& o) {
  const size_t rows = static_cast<size_t>(o.n_rows);
  const size_t n_head = static_cast<size_t>(o.n_head), n_kv = static_cast<size_t>(o.n_head_kv);
  check_span(o.q.size(), rows * n_head * static_cast<size_t>(o.d_k), "q");
  check_span(o.k.size(), rows * n_kv * static_cast<size_t>(o.d_k), "k");
  check_span(o.v.size(), rows * n_kv * static_cast<size_t>(o.d_v), "v");
  if (!o.mask.empty()) check_span(o.mask.size(), rows * rows, "mask");
}

// First position that row i sees.
int first_seen(const Observation& o, int i) {
  if (o.mask.empty()) return 0;
  const float* row = o.mask.data() + static_cast<size_t>(i) * static_cast<size_t>(o.n_rows);
  return static_cast<int>(std::find(row, row + i, 0.0f) - row);
}

// The same for a row that must see every position from there to itself, and no later one.
int first_visible(const Observation& o, int i) {
  const int first = first_seen(o, i);
  if (o.mask.empty()) return first;
  const float* row = o.mask.data() + static_cast<size_t>(i) * static_cast<size_t>(o.n_rows);
  for (int j = 0; j < o.n_rows; ++j) {
    const bool seen = j >= first && j <= i;
    if (seen ? row[j] == 0.0f : row[j] == -INFINITY) continue;
    throw Error(ErrorCode::kUnsupported,
                fmt::format("layer {}: the mask holds {} for position {} seen from {}; only "
                            "causal attention without a bias can be diagnosed",
                            o.layer, row[j], j, i));
  }
  return first;
}

// Rows of one head out of [n_rows][n_head][d].
std::vector<float> head_rows(std::span<const float> data, int n_rows, int n_head, int head, int d) {
  std::vector<float> out;
  out.reserve(static_cast<size_t>(n_rows) * static_cast<size_t>(d));
  for (int i = 0; i < n_rows; ++i) {
    const auto at = data.begin() + (static_cast<std::ptrdiff_t>(i) * n_head + head) * d;
    out.insert(out.end(), at, at + d);
  }
  return out;
}

// n positions of the second half of a chunk, evenly spaced and different; the last one is its end.
std::vector<int> query_positions(int n_tokens, int n) {
  const int half = n_tokens - n_tokens / 2;
  const int count = std::min(n, half);
  std::vector<int> out;
  for (int i = 1; i <= count; ++i) out.push_back(n_tokens / 2 - 1 + i * half / count);
  return out;
}

// End of the blocks that a query at a position reads packed.
int coded_end(int position, int window) {
  return std::max(position + 1 - window, 0) / kBlockTokens * kBlockTokens;
}

}  // namespace

size_t HeadSample::n_queries() const {
  size_t n = 0;
  for (const SampleChunk& chunk : chunks) n += chunk.queries.size();
  return n;
}

HeadProfile HeadSample::profile_for(const CodecSpec& spec) const {
  HeadProfile out = profile;
  if (!spec.is_nib()) return out;
  const auto code = std::find_if(codes.begin(), codes.end(),
                                 [&](const FittedCode& c) { return c.spec == spec; });
  if (code == codes.end()) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("no code was fitted for '{}'", spec.to_string()));
  }
  out.key_nib = code->key;
  out.value_nib = code->value;
  return out;
}

std::vector<HeadId> choose_heads(std::span<const LayerShape> shapes, int n_max) {
  std::vector<HeadId> all;
  for (size_t il = 0; il < shapes.size(); ++il) {
    for (int h = 0; h < shapes[il].n_head_kv; ++h) all.emplace_back(static_cast<int>(il), h);
  }
  const size_t n = std::min(all.size(), static_cast<size_t>(std::max(n_max, 0)));
  std::vector<HeadId> out;
  for (size_t i = 0; i < n; ++i) out.push_back(all[i * all.size() / n]);
  return out;
}

HeadSampler::HeadSampler(std::span<const HeadId> heads, const SamplerOptions& options)
    : options_(options) {
  for (const HeadId& id : heads) {
    HeadSample& sample = samples_[id];
    sample.layer = id.first;
    sample.head = id.second;
    sample.sinks = options.sinks;
  }
}

void HeadSampler::observe(const Observation& o) {
  const auto begin = samples_.lower_bound({o.layer, 0});
  if (begin == samples_.end() || begin->first.first != o.layer) return;
  check_spans(o);
  if (o.max_bias != 0.0f) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("layer {} adds a bias to its scores (ALiBi, {}); only attention without "
                    "one can be diagnosed",
                    o.layer, o.max_bias));
  }
  for (auto at = begin; at != samples_.end() && at->first.first == o.layer; ++at) {
    HeadSample& sample = at->second;
    if (sample.head >= o.n_head_kv ||
        (sample.d_k != 0 && (sample.d_k != o.d_k || sample.d_v != o.d_v))) {
      throw Error(ErrorCode::kMismatch, fmt::format("layer {} changed its shape", o.layer));
    }
    sample.n_group = o.n_head / o.n_head_kv;
    sample.d_k = o.d_k;
    sample.d_v = o.d_v;
    sample.scale = o.scale;
    sample.softcap = o.softcap;

    SampleChunk chunk;
    chunk.n_tokens = o.n_rows;
    for (int position : query_positions(o.n_rows, options_.n_queries)) {
      const int first = first_visible(o, position);
      const int end = coded_end(position, options_.window);
      if (end <= std::max(first, options_.sinks)) continue;
      for (int g = 0; g < sample.n_group; ++g) {
        chunk.queries.push_back({g, first, position, end});
        const int head = sample.head * sample.n_group + g;
        const auto row =
            o.q.begin() + (static_cast<std::ptrdiff_t>(position) * o.n_head + head) * o.d_k;
        chunk.q.insert(chunk.q.end(), row, row + o.d_k);
      }
    }
    if (chunk.queries.empty()) continue;
    chunk.k = head_rows(o.k, o.n_rows, o.n_head_kv, sample.head, o.d_k);
    chunk.v = head_rows(o.v, o.n_rows, o.n_head_kv, sample.head, o.d_v);
    std::vector<int> first(static_cast<size_t>(o.n_rows));
    for (int i = 0; i < o.n_rows; ++i) first[static_cast<size_t>(i)] = first_seen(o, i);
    for (int g = 0; g < sample.n_group; ++g) {
      add_paid_attention({.n_tokens = o.n_rows,
                          .d = o.d_k,
                          .scale = o.scale,
                          .softcap = o.softcap,
                          .window = options_.window,
                          .q = head_rows(o.q, o.n_rows, o.n_head, sample.head * sample.n_group + g, o.d_k),
                          .k = chunk.k,
                          .first = first},
                         chunk.paid);
    }
    sample.chunks.push_back(std::move(chunk));
  }
}

std::vector<HeadSample> HeadSampler::take() {
  std::vector<HeadSample> out;
  for (auto& [id, sample] : samples_) {
    if (!sample.chunks.empty()) out.push_back(std::move(sample));
  }
  samples_.clear();
  return out;
}

}  // namespace headq
