#pragma once

// Profiles of tiny models, calibrated through the plugin's observer on the model itself.

#include <set>
#include <span>
#include <string>
#include <vector>

#include "ggml/session.h"
#include "headq/calibrate.h"

namespace headq::testing {

// Feeds what the plugin's observer sees to a Calibrator.
class CalibratorFeed {
 public:
  explicit CalibratorFeed(Calibrator& calibrator);
  ~CalibratorFeed();
  CalibratorFeed(const CalibratorFeed&) = delete;
  CalibratorFeed& operator=(const CalibratorFeed&) = delete;

  const std::set<int>& layers() const { return layers_; }
  int n_calls() const { return n_calls_; }

 private:
  void set(headq_observer_t observer);
  static void on_attention(const headq_observation* o, void* user);
  void add(const headq_observation& o);

  Calibrator& calibrator_;
  std::set<int> layers_;
  int n_calls_ = 0;
};

// Calibrates on texts of at most 512 tokens and writes <name>.profile.gguf into the scratch folder;
// with codes of nib when kv asks for some. Returns the path.
std::string calibrate(const Model& model, const std::string& name, const std::string& kv,
                      std::span<const std::vector<int32_t>> texts);

// The same on pseudo-random text.
std::string calibrate(const Model& model, const std::string& name,
                      const std::string& kv = "dense/dense");

}  // namespace headq::testing
