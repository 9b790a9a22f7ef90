#include "cli/full_model_report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "cli/table.h"

namespace headq {
namespace {

using Json = nlohmann::ordered_json;

const char* name_of(FullModelRole role) {
  switch (role) {
    case FullModelRole::kBase: return "base";
    case FullModelRole::kSideCode: return "side_code";
    case FullModelRole::kWideBase: return "wide_base";
    case FullModelRole::kRandomBasis: return "random_basis";
    case FullModelRole::kWrongSign: return "wrong_sign";
    case FullModelRole::kPaidTokens: return "paid_tokens";
    case FullModelRole::kRandomTokens: return "random_tokens";
    case FullModelRole::kNib: return "nib";
    case FullModelRole::kReference: break;
  }
  return "reference";
}

const char* name_of(FullModelPart part) {
  switch (part) {
    case FullModelPart::kKeysOnly: return "keys_only";
    case FullModelPart::kFullKv: return "full_kv";
    case FullModelPart::kLlamaCpp: break;
  }
  return "llama_cpp";
}

constexpr FullModelPart kParts[] = {FullModelPart::kKeysOnly, FullModelPart::kFullKv,
                                    FullModelPart::kLlamaCpp};

Json json(const Estimate& e) {
  return {{"value", e.value}, {"error", e.error}};  // not a number becomes null
}

Json json(const FullModelRow& row) {
  const bool packed = row.part != FullModelPart::kLlamaCpp;
  const PairedSummary& s = row.summary;
  return {{"kv", row.kv},
          {"role", name_of(row.role)},
          {"bits", packed ? Json(row.bits) : Json()},
          {"rank", row.rank > 0 ? Json(row.rank) : Json()},
          {"true_bits", row.true_bits},
          {"packed_bits", row.packed_bits},
          {"ppl", json(s.ppl)},
          {"ppl_ratio", json(s.ppl_ratio)},
          {"excess_ppl_removed", json(row.removed.excess_ppl)},
          {"kld", json(s.kld)},
          {"kld_removed", json(row.removed.kld)},
          {"top1", json(s.top1)}};
}

std::string cell(const Estimate& e, int digits, double scale = 1) {
  if (std::isnan(e.value)) return "-";
  return std::isnan(e.error)
             ? fmt::format("{:.{}f}", scale * e.value, digits)
             : fmt::format("{:.{}f} ± {:.{}f}", scale * e.value, digits, scale * e.error, digits);
}

std::string part_table(const FullModel& full, FullModelPart part) {
  Table out({"keys/values", "", "packed bits", "true bits", "PPL", "PPL/dense",
             "excess removed %", "KLD", "removed %", "top-1 %"});
  out.add_row({"dense", "", "-", fmt::format("{:.2f}", full.dense_cache.true_bits()),
               cell(full.dense_ppl, 3), "-", "-", "-", "-", "-"});
  for (const FullModelRow& row : full.rows) {
    if (row.part != part) continue;
    const PairedSummary& s = row.summary;
    std::string role = name_of(row.role);
    std::replace(role.begin(), role.end(), '_', ' ');
    out.add_row({row.kv, role, fmt::format("{:.2f}", row.packed_bits),
                 fmt::format("{:.2f}", row.true_bits), cell(s.ppl, 3), cell(s.ppl_ratio, 4),
                 cell(row.removed.excess_ppl, 0, 100), cell(s.kld, 4),
                 cell(row.removed.kld, 0, 100), cell(s.top1, 1, 100)});
  }
  return out.to_string() + "\n";
}

}  // namespace

Json full_model_json(const FullModel& full) {
  Json out = {{"n_ctx", full.n_ctx},
              {"n_chunks", full.n_chunks},
              {"n_scored", full.n_scored},
              {"window", full.window},
              {"sinks", full.sinks},
              {"dense",
               {{"ppl", json(full.dense_ppl)}, {"true_bits", full.dense_cache.true_bits()}}}};
  for (FullModelPart part : kParts) {
    Json rows = Json::array();
    for (const FullModelRow& row : full.rows) {
      if (row.part == part) rows.push_back(json(row));
    }
    out[name_of(part)] = std::move(rows);
  }
  return out;
}

std::string full_model_tables(const FullModel& full) {
  return fmt::format("6. The whole model: {} tokens scored, all against one dense run\n\n",
                     full.n_scored) +
         "Keys packed, values dense:\n\n" + part_table(full, FullModelPart::kKeysOnly) +
         "Keys and values packed:\n\n" + part_table(full, FullModelPart::kFullKv) +
         "llama.cpp's own caches (f16 shows the floor):\n\n" +
         part_table(full, FullModelPart::kLlamaCpp);
}

}  // namespace headq
