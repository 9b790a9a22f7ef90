#include "diagnose/null_space.h"

#include <algorithm>
#include <cmath>

#include "diagnose/reading.h"

namespace headq {
namespace {

void add_to_rows(std::vector<float>& rows, std::span<const float> shift) {
  for (size_t i = 0; i < rows.size(); ++i) rows[i] += shift[i % shift.size()];
}

double largest_kl(const KeyReading& reading) {
  double largest = 0;
  for (const QueryDamage& query : reading.queries) largest = std::max(largest, query.scores.kl);
  return largest;
}

}  // namespace

std::vector<std::string> null_space_codecs() {
  return {"token2", "token4", "token2h", "kivi2", "kivi4", "token2c", "token4c"};
}

HeadSample shifted(const HeadSample& sample, std::span<const float> shift) {
  HeadSample out = sample;
  for (SampleChunk& chunk : out.chunks) add_to_rows(chunk.k, shift);
  add_to_rows(out.profile.key_mean, shift);
  return out;
}

NullSpaceHead null_space_head(const HeadSample& sample) {
  const std::vector<std::string> codecs = null_space_codecs();
  const DenseAttention dense(sample);
  NullSpaceHead out;
  out.kl.resize(codecs.size());
  out.mse.resize(codecs.size());
  for (double multiple : kShiftMultiples) {
    std::vector<float> shift;
    for (float m : sample.profile.key_mean) shift.push_back(static_cast<float>(multiple * m));
    const HeadSample moved = shifted(sample, shift);
    std::vector<std::vector<float>> keys;
    for (const SampleChunk& chunk : moved.chunks) keys.push_back(chunk.k);
    out.dense_kl.push_back(largest_kl(dense.read_keys(keys)));
    const DenseAttention moved_dense(moved);
    for (size_t c = 0; c < codecs.size(); ++c) {
      const KeyReading reading = moved_dense.read_keys(CodecSpec::parse(codecs[c]), moved.profile);
      out.kl[c].push_back(mean_kl(reading));
      out.mse[c].push_back(reading.mse);
    }
  }
  return out;
}

NullSpace null_space(std::span<const NullSpaceHead> heads) {
  const auto zero = std::find(kShiftMultiples.begin(), kShiftMultiples.end(), 0.0);
  const size_t as_is = static_cast<size_t>(zero - kShiftMultiples.begin());
  NullSpace out;
  out.n_heads = heads.size();
  for (size_t m = 0; m < kShiftMultiples.size(); ++m) {
    double largest = 0;
    for (const NullSpaceHead& head : heads) largest = std::max(largest, head.dense_kl[m]);
    out.dense_kl.push_back(largest);
  }
  const std::vector<std::string> codecs = null_space_codecs();
  for (size_t c = 0; c < codecs.size(); ++c) {
    for (size_t m = 0; m < kShiftMultiples.size(); ++m) {
      std::vector<double> kl, mse, log_ratio;
      for (const NullSpaceHead& head : heads) {
        kl.push_back(head.kl[c][m]);
        mse.push_back(head.mse[c][m]);
        log_ratio.push_back(std::log(head.kl[c][m] / head.kl[c][as_is]));
      }
      out.rows.push_back({codecs[c], kShiftMultiples[m], mean_error(kl), mean_error(mse),
                          exp_of(mean_error(log_ratio))});
    }
  }
  return out;
}

}  // namespace headq
