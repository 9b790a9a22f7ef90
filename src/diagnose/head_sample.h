#pragma once

#include <map>
#include <span>
#include <utility>
#include <vector>

#include "diagnose/paid_attention.h"
#include "headq/calibrate.h"
#include "headq/profile.h"
#include "headq/spec.h"

namespace headq {

// A query row of a sample, and what it sees.
struct SampleQuery {
  int head = 0;       // query head within the group, 0..n_group-1
  int first = 0;      // first position seen: 0, or the start of a sliding window
  int position = 0;   // its own and last position seen
  int coded_end = 0;  // positions from the sinks up to here are read coded, the others dense

  int n_visible() const { return position + 1 - first; }
};

// One chunk of text as one KV head saw it.
struct SampleChunk {
  int n_tokens = 0;
  std::vector<float> k;  // [n_tokens][d_k], post-RoPE
  std::vector<float> v;  // [n_tokens][d_v]
  std::vector<SampleQuery> queries;
  std::vector<float> q;  // [queries.size()][d_k], post-RoPE
  PaidAttention paid;    // by all queries of the group, those of the sample among them
};

// A code of nib for keys and values, fitted on the text that bases were made of.
struct FittedCode {
  CodecSpec spec;
  NibCode key, value;
};

// What the experiments know of one KV head: keys, values and some queries of the heads that read
// it, from text that no basis was made of, and the two profiles bases may come from.
struct HeadSample {
  int layer = 0;
  int head = 0;     // KV head of the layer
  int n_group = 1;  // query heads that read it
  int d_k = 0, d_v = 0;
  float scale = 1;      // logit scale
  float softcap = 0;    // 0: none
  int sinks = 4;        // first positions of a chunk that stay dense
  HeadProfile profile;  // calibrated on other text
  HeadProfile oracle;   // calibrated on the very chunks below
  std::vector<FittedCode> codes;
  std::vector<SampleChunk> chunks;

  size_t n_queries() const;
  // The profile that a codec is to be made with: one of nib needs the code of its rate. Throws
  // Error(kInvalidArgument) when that was not fitted.
  HeadProfile profile_for(const CodecSpec& spec) const;
};

struct SamplerOptions {
  int n_queries = 24;  // positions per chunk at which each head's query is taken
  int window = 32;     // latest tokens that are read dense
  int sinks = 4;
};

// KV heads as (layer, head).
using HeadId = std::pair<int, int>;

// At most n_max of all KV heads, evenly spaced over the layers; all of them when there are fewer.
// shapes: of layers 0, 1, ...; a layer without a cache has no heads.
std::vector<HeadId> choose_heads(std::span<const LayerShape> shapes, int n_max);

// Collects samples of chosen heads from what attention saw. Queries come from the second half of a
// chunk, evenly spaced; ones that read nothing coded are left out (docs/architecture.md, "Read
// semantics"). Memory: n_tokens (d_k + d_v) floats for each head and chunk. Not thread-safe.
class HeadSampler {
 public:
  HeadSampler(std::span<const HeadId> heads, const SamplerOptions& options);

  // One chunk of one layer, all its rows from position 0 on. Layers without a chosen head are
  // passed over. Throws Error: kInvalidArgument when spans and shape disagree, kUnsupported when
  // scores have a bias (ALiBi, or a mask that adds anything but 0 and -inf), kMismatch when a layer
  // changes its shape.
  void observe(const Observation& observation);

  // The samples that have queries, in the order of the heads; empties the sampler.
  std::vector<HeadSample> take();

 private:
  SamplerOptions options_;
  std::map<HeadId, HeadSample> samples_;
};

}  // namespace headq
