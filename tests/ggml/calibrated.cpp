#include "ggml/calibrated.h"

#include <gtest/gtest.h>

#include "ggml/observation.h"

namespace headq::testing {
namespace {

constexpr int kChunk = 500;
constexpr int kChunks = 3;
constexpr int kSamples = 1024;  // enough for codes that are better than their controls

}  // namespace

CalibratorFeed::CalibratorFeed(Calibrator& calibrator) : calibrator_(calibrator) {
  set(&CalibratorFeed::on_attention);
}

CalibratorFeed::~CalibratorFeed() { set(nullptr); }

void CalibratorFeed::set(headq_observer_t observer) {
  Plugin::get().function<headq_set_observer_t>("headq_set_observer")(observer, this);
}

void CalibratorFeed::on_attention(const headq_observation* o, void* user) {
  static_cast<CalibratorFeed*>(user)->add(*o);
}

void CalibratorFeed::add(const headq_observation& o) {
  calibrator_.observe(observation_of(o));
  layers_.insert(o.layer);
  ++n_calls_;
}

std::string calibrate(const Model& model, const std::string& name, const std::string& kv,
                      std::span<const std::vector<int32_t>> texts) {
  NibOptions nib;
  nib.kv = KvSpec::parse(kv);
  const bool has_nib = nib.kv.k.is_nib() || nib.kv.v.is_nib();
  Calibrator calibrator({.n_samples = has_nib ? kSamples : 0});
  {
    Session session(model, {.n_ctx = 512});
    const CalibratorFeed feed(calibrator);
    for (const std::vector<int32_t>& text : texts) {
      calibrator.begin_chunk();
      session.feed(text);
      llama_memory_clear(session.memory(), true);
    }
    EXPECT_EQ(feed.n_calls(), static_cast<int>(texts.size() * feed.layers().size()));
  }
  Profile profile = calibrator.finish();
  if (has_nib) calibrator.fit_nib(nib, profile);
  const std::string path = scratch_dir() + "/" + name + ".profile.gguf";
  profile.save(path);
  return path;
}

std::string calibrate(const Model& model, const std::string& name, const std::string& kv) {
  std::vector<std::vector<int32_t>> texts;
  for (int i = 0; i < kChunks; ++i) texts.push_back(tiny_tokens(kChunk, 1000 + i));
  return calibrate(model, name, kv, texts);
}

}  // namespace headq::testing
