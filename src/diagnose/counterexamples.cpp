#include "diagnose/counterexamples.h"

#include <algorithm>
#include <cmath>
#include <map>

namespace headq {
namespace {

constexpr double kSignificant = 2.0;  // standard errors

// Paired difference of a figure over the queries of one query head.
template <typename Fn>
MeanError paired(const HeadReadings& head, int group, const KeyReading& a, const KeyReading& b,
                 const Fn& figure) {
  std::vector<double> differences;
  for (size_t i = 0; i < a.queries.size(); ++i) {
    if (head.query_heads[i] != group) continue;
    differences.push_back(figure(a.queries[i]) - figure(b.queries[i]));
  }
  return mean_error(differences);
}

bool is_significant(const MeanError& difference) {
  return difference.value > kSignificant * difference.error;  // false for NaN
}

// Counts of one measure; shares are means over KV heads.
class Counter {
 public:
  void begin_head() { head_ = {}; }
  void add(bool reversed, bool significant) {
    ++head_.n_pairs;
    head_.n_reversed += reversed ? 1 : 0;
    head_.n_significant += significant ? 1 : 0;
  }
  void end_head() {
    total_.n_pairs += head_.n_pairs;
    total_.n_reversed += head_.n_reversed;
    total_.n_significant += head_.n_significant;
    if (head_.n_pairs == 0) return;
    const double n = static_cast<double>(head_.n_pairs);
    shares_.push_back(static_cast<double>(head_.n_reversed) / n);
    significant_.push_back(static_cast<double>(head_.n_significant) / n);
  }
  Reversals finish() {
    total_.share = mean_error(shares_);
    total_.significant_share = mean_error(significant_);
    return total_;
  }

 private:
  Reversals head_, total_;
  std::vector<double> shares_, significant_;
};

// a is the one with the lower measure. Fills in the differences when the harm is the other way.
bool is_reversed(const HeadReadings& head, const KeyCell& a, const KeyCell& b,
                 Counterexample& out) {
  if (!(a.kl > b.kl && a.output_error > b.output_error)) return false;
  const int group = a.head - head.head * head.n_group;
  const KeyReading& ra = head.keys[a.codec];
  const KeyReading& rb = head.keys[b.codec];
  out.layer = a.layer;
  out.head = a.head;
  out.bits = a.bits;
  out.stored_better = head.key_codecs[a.codec].name;
  out.read_better = head.key_codecs[b.codec].name;
  const KeyCell* const cells[] = {&a, &b};
  for (int i = 0; i < 2; ++i) {
    out.mse[i] = cells[i]->mse;
    out.kl[i] = cells[i]->kl;
    out.output_error[i] = cells[i]->output_error;
  }
  out.kl_difference = paired(head, group, ra, rb, [](const QueryDamage& q) { return q.scores.kl; });
  out.output_difference =
      paired(head, group, ra, rb, [](const QueryDamage& q) { return q.output_error; });
  return true;
}

double size(const Counterexample& e) {
  return std::min(e.kl[0] / e.kl[1], e.output_error[0] / e.output_error[1]);
}

}  // namespace

Counterexamples find_counterexamples(std::span<const HeadReadings> heads) {
  const std::vector<CodecSpec> specs = with_nib(metric_key_specs(), heads);
  Counter by_mse, by_fisher;
  std::map<std::pair<std::string, std::string>, Counterexample> best;
  const auto count = [&](const HeadReadings& head, const KeyCell& a, const KeyCell& b,
                         double KeyCell::*measure, Counter& counter, bool keep) {
    const bool a_lower = a.*measure < (1 - Counterexamples::kMargin) * (b.*measure);
    const bool b_lower = b.*measure < (1 - Counterexamples::kMargin) * (a.*measure);
    if (!a_lower && !b_lower) return;
    Counterexample found;
    const bool reversed = a_lower ? is_reversed(head, a, b, found) : is_reversed(head, b, a, found);
    const bool significant =
        reversed && is_significant(found.kl_difference) && is_significant(found.output_difference);
    counter.add(reversed, significant);
    if (!significant || !keep) return;
    const auto [at, is_new] = best.try_emplace({found.stored_better, found.read_better}, found);
    if (!is_new && size(found) > size(at->second)) at->second = found;
  };
  for (size_t h = 0; h < heads.size(); ++h) {
    const std::vector<KeyCell> cells = key_cells(heads.subspan(h, 1), specs);
    by_mse.begin_head();
    by_fisher.begin_head();
    for (size_t i = 0; i < cells.size(); ++i) {
      for (size_t j = i + 1; j < cells.size(); ++j) {
        if (cells[i].head != cells[j].head || cells[i].bits != cells[j].bits) continue;
        count(heads[h], cells[i], cells[j], &KeyCell::mse, by_mse, true);
        count(heads[h], cells[i], cells[j], &KeyCell::fisher, by_fisher, false);
      }
    }
    by_mse.end_head();
    by_fisher.end_head();
  }
  Counterexamples out;
  out.by_mse = by_mse.finish();
  out.by_fisher = by_fisher.finish();
  for (auto& [pair, example] : best) out.shown.push_back(std::move(example));
  std::stable_sort(out.shown.begin(), out.shown.end(),
                   [](const auto& a, const auto& b) { return size(a) > size(b); });
  if (out.shown.size() > Counterexamples::kMostShown) {
    out.shown.resize(Counterexamples::kMostShown);
  }
  return out;
}

}  // namespace headq
