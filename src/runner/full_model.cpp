#include "runner/full_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "codec/codec.h"
#include "headq/error.h"

namespace headq {
namespace {

// A row before it is measured.
struct Plan {
  FullModelRow row;
  CacheCandidate candidate;
};

std::string profile_of(std::span<const RateProfile> profiles, int bits) {
  for (const RateProfile& profile : profiles) {
    if (profile.rate == bits) return profile.path;
  }
  throw Error(ErrorCode::kInvalidArgument, fmt::format("no profile holds codes of nib{}", bits));
}

CodecSpec side_code(int bits, int rank) {
  return CodecSpec::parse(fmt::format("kivi{}+hq{}x4", bits, rank));
}

bool has_wide_channels(const ModelInfo& info, int bits, int n) {
  return std::all_of(info.layers.begin(), info.layers.end(), [&](const LayerShape& shape) {
    return shape.n_head_kv == 0 || (bits == 3 ? shape.d_k / 2 : 0) + n <= shape.d_k;
  });
}

// The key codecs of one rate.
std::vector<std::pair<FullModelRow, CodecSpec>> key_codecs(const ModelInfo& info, int bits) {
  std::vector<std::pair<FullModelRow, CodecSpec>> out;
  const auto add = [&](FullModelRole role, int rank, const CodecSpec& spec) {
    FullModelRow row;
    row.role = role;
    row.bits = bits;
    row.rank = rank;
    out.emplace_back(row, spec);
  };
  const CodecSpec base = CodecSpec::parse(fmt::format("kivi{}", bits));
  add(FullModelRole::kBase, 0, base);
  for (int rank : kFullModelRanks) add(FullModelRole::kSideCode, rank, side_code(bits, rank));
  CodecSpec wide = base;
  wide.wide = wide_channels(bits, kControlRank);
  if (has_wide_channels(info, bits, wide.wide)) add(FullModelRole::kWideBase, kControlRank, wide);
  CodecSpec random = side_code(bits, kControlRank), wrong = random;
  random.side_basis = SideBasis::kRandom;
  wrong.side_sign = -1;
  add(FullModelRole::kRandomBasis, kControlRank, random);
  add(FullModelRole::kWrongSign, kControlRank, wrong);
  add(FullModelRole::kNib, 0, CodecSpec::parse(fmt::format("nib{}", bits)));
  return out;
}

// Random bases and wrong signs say the same with packed values, so they run with dense ones only.
bool is_in(FullModelPart part, FullModelRole role) {
  return part == FullModelPart::kKeysOnly ||
         (role != FullModelRole::kRandomBasis && role != FullModelRole::kWrongSign);
}

// Values of kivi2 refined by token.
void add_refined(const std::string& profile, std::vector<Plan>& plans) {
  for (const auto& [role, kv] : {std::pair(FullModelRole::kPaidTokens, "kivi2/kivi2+a2"),
                                 std::pair(FullModelRole::kRandomTokens, "kivi2/kivi2+a2@random")}) {
    Plan& plan = plans.emplace_back();
    plan.row.part = FullModelPart::kFullKv;
    plan.row.role = role;
    plan.row.bits = 2;
    plan.row.kv = kv;
    CacheSpec cache;
    cache.kv = KvSpec::parse(kv);
    plan.candidate = {kv, cache, profile};
  }
}

std::vector<Plan> packed_plans(const ModelInfo& info, std::span<const RateProfile> profiles) {
  std::vector<Plan> plans;
  for (FullModelPart part : {FullModelPart::kKeysOnly, FullModelPart::kFullKv}) {
    for (int bits : kFullModelBits) {
      const std::string nib_profile = profile_of(profiles, bits);
      for (auto& [row, keys] : key_codecs(info, bits)) {
        if (!is_in(part, row.role)) continue;
        CacheSpec cache;
        cache.kv.k = keys;
        if (part == FullModelPart::kFullKv) {
          cache.kv.v = keys.is_nib() ? keys : CodecSpec::parse(fmt::format("kivi{}", bits));
        }
        row.part = part;
        row.kv = cache.kv.to_string();
        plans.push_back(
            {row, {row.kv, cache, keys.is_nib() ? nib_profile : profiles.front().path}});
      }
      if (part == FullModelPart::kFullKv && bits == 2) add_refined(profiles.front().path, plans);
    }
  }
  return plans;
}

void add_llama_cpp(const Model& cpu, std::vector<Plan>& plans) {
  for (const char* type : {"f16", "q8_0", "q4_0"}) {
    if (!cpu_cache_serves(type, cpu.info())) continue;
    Plan& plan = plans.emplace_back();
    plan.row.part = FullModelPart::kLlamaCpp;
    plan.row.role = FullModelRole::kReference;
    plan.row.kv = type;
    plan.row.true_bits = plan.row.packed_bits = cpu_cache_bits(type);
    plan.candidate.name = type;
    plan.candidate.cpu_model = &cpu;
    plan.candidate.cpu_cache = type;
  }
}

// Caches of a group hold the logits of a batch twice, at most about this much in all.
int together(const Model& model, int n_batch) {
  constexpr double kBytes = 1 << 30;
  const double one = 2.0 * sizeof(float) * n_batch * model.n_vocab();
  return std::clamp(static_cast<int>(kBytes / one), 2, 16);
}

void fill_in(const PerplexityReport& report, std::span<const Plan> plans, FullModel& out) {
  const std::vector<PairedScore>* base = nullptr;
  for (size_t i = 0; i < plans.size(); ++i) {
    const PerplexityRow& measured = report.rows[i];
    FullModelRow& row = out.rows.emplace_back(plans[i].row);
    row.summary = measured.summary;
    const double nan = std::numeric_limits<double>::quiet_NaN();
    row.removed = {{nan, nan}, {nan, nan}};
    if (row.part == FullModelPart::kLlamaCpp) continue;
    row.true_bits = measured.cache.true_bits();
    row.packed_bits = measured.cache.packed_bits();
    if (row.role == FullModelRole::kBase) {
      base = &measured.scores;
    } else {
      row.removed = damage_removed(*base, measured.scores);
    }
  }
}

}  // namespace

int wide_channels(int bits, int rank) {
  const int side_bytes = rank * (kGroupBytes + 2 * static_cast<int>(sizeof(Half)));
  const int wide_bytes = (bits == 4 ? 4 : 2) * kBlockTokens / 8;  // 2 bits become 4, 4 become 8
  return (side_bytes + wide_bytes - 1) / wide_bytes;
}

FullModel measure_full_model(const Model& model, const ChunkedText& text,
                             std::span<const RateProfile> profiles,
                             const FullModelOptions& options) {
  constexpr int kBatch = 128;
  const Model cpu = Model::load(model.path(), Device::kCpu);
  std::vector<Plan> plans = packed_plans(model.info(), profiles);
  add_llama_cpp(cpu, plans);
  std::vector<CacheCandidate> candidates;
  for (const Plan& plan : plans) candidates.push_back(plan.candidate);
  const int n_batch = std::min(kBatch, text.n_ctx());
  const PerplexityReport report = measure_perplexity(model, text, candidates,
                                                     {.n_batch = n_batch,
                                                      .n_ubatch = n_batch,
                                                      .n_threads = options.n_threads,
                                                      .n_together = together(model, n_batch),
                                                      .progress = options.progress});
  FullModel out;
  out.n_ctx = text.n_ctx();
  out.n_chunks = report.n_chunks;
  out.n_scored = report.n_scored;
  out.window = CacheSpec().window;
  out.sinks = CacheSpec().sinks;
  out.dense_ppl = report.dense_ppl;
  out.dense_cache = report.dense_cache;
  fill_in(report, plans, out);
  return out;
}

}  // namespace headq
