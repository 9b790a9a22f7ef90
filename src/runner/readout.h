#pragma once

#include <Eigen/Dense>
#include <map>

#include "codec/model_files.h"
#include "headq/calibrate.h"
#include "runner/model.h"

namespace headq {

// Sees how large the residual stream is where a layer's attention output is added to it, and knows
// W_O from the model file (blk.N.attn_output.weight): both together say what an error of a value does
// (LayerReadout).
//
// |x|^2 is read at the sum of residual stream and attention output, by the names that llama.cpp's
// models give it. Where a model normalises the output of W_O before the sum, its gain is measured as
// the ratio of the energies behind and before.
class ReadoutObserver : public TensorObserver {
 public:
  explicit ReadoutObserver(const Model& model);

  bool wants(const ggml_tensor& tensor) override;
  void take(const ggml_tensor& tensor) override;

  // The readouts of all layers for which the names and W_O were found.
  std::map<int, LayerReadout> readouts() const;

 private:
  struct Energy {
    double sum = 0.0, inverse_sum = 0.0, n = 0.0;  // of |x|^2, 1 / |x|^2, rows

    void add(const float* rows, size_t width, size_t n_rows);
    double mean() const { return n > 0.0 ? sum / n : 0.0; }
    double mean_inverse() const { return n > 0.0 ? inverse_sum / n : 0.0; }
  };
  struct LayerEnergies {
    Energy residual;            // behind the sum
    Energy projected, normed;   // output of W_O, and of the normalisation behind it
  };

  using Weight = Eigen::Matrix<float, Eigen::Dynamic, Eigen::Dynamic, Eigen::RowMajor>;

  Weight output_weight(int layer) const;

  const Model& model_;
  ModelFiles files_;
  std::map<int, LayerEnergies> layers_;
};

}  // namespace headq
