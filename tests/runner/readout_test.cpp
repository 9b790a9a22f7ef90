#include "runner/readout.h"

#include <ggml.h>
#include <gtest/gtest.h>

#include <cmath>

#include "models/tiny_models.h"
#include "runner/observing.h"
#include "runner/run_program.h"
#include "runner/tiny_run.h"

namespace headq {
namespace {

using testing::scratch_dir;
using testing::TinyFamily;

constexpr int kContext = 128;

std::map<int, LayerReadout> readouts_of(const Model& model) {
  ReadoutObserver readout(model);
  std::vector<std::vector<int32_t>> chunks(2);
  for (int i = 0; i < 2 * kContext; ++i) chunks[static_cast<size_t>(i / kContext)].push_back(5 + i * 7 % 50);
  observe_chunks(model, chunks, 1, {.observe = [](const Observation&) {}, .tensors = &readout});
  return readout.readouts();
}

Model model_of(TinyFamily family) {
  return Model::load(testing::write_tiny_model({.family = family}, scratch_dir()), Device::kPlugin);
}

// The metric of each head is W_h^T W_h by the definition, times one number a layer.
TEST(Readout, IsTheMetricOfEachHeadsPartOfTheOutputWeight) {
  for (TinyFamily family : {TinyFamily::kLlama, TinyFamily::kGemma3}) {
    SCOPED_TRACE(family);
    const Model model = model_of(family);
    const std::map<int, LayerReadout> readouts = readouts_of(model);
    ASSERT_EQ(readouts.size(), static_cast<size_t>(model.info().n_layer));
    const ModelFiles files = ModelFiles::open(model.path());
    for (const auto& [il, readout] : readouts) {
      const GgufTensor* tensor = files.find_tensor("blk." + std::to_string(il) + ".attn_output.weight");
      ASSERT_NE(tensor, nullptr);
      ASSERT_EQ(tensor->type, kTensorF32);
      const float* w = reinterpret_cast<const float*>(tensor->data.data());
      const size_t n_in = tensor->ne[0], n_out = tensor->ne[1], d = static_cast<size_t>(readout.d_v);
      ASSERT_EQ(readout.metric.size(), n_in * d);
      double factor = 0.0;
      for (size_t h = 0; h < n_in / d; ++h) {
        for (size_t a = 0; a < d; ++a) {
          for (size_t b = 0; b < d; ++b) {
            double wanted = 0.0;
            for (size_t o = 0; o < n_out; ++o) {
              wanted += static_cast<double>(w[o * n_in + h * d + a]) * w[o * n_in + h * d + b];
            }
            const double got = readout.metric[(h * d + a) * d + b];
            if (factor == 0.0) factor = got / wanted;  // of the layer
            ASSERT_NEAR(got, factor * wanted, 1e-4 * factor * n_out);
          }
        }
      }
      EXPECT_GT(factor, 0.0);
    }
  }
}

// Sees |x|^2 itself, beside the observer.
class Residuals : public TensorObserver {
 public:
  std::map<std::string, std::vector<double>> squares;

  bool wants(const ggml_tensor& tensor) override { return std::string(tensor.name).starts_with("ffn_inp-"); }
  void take(const ggml_tensor& tensor) override {
    const float* rows = static_cast<const float*>(tensor.data);
    for (int64_t i = 0; i < tensor.ne[1]; ++i) {
      double sum = 0.0;
      for (int64_t c = 0; c < tensor.ne[0]; ++c) sum += std::pow(rows[i * tensor.ne[0] + c], 2);
      squares[tensor.name].push_back(sum);
    }
  }
};

TEST(Readout, CountsErrorsInProportionToTheResidualStream) {
  const Model model = model_of(TinyFamily::kLlama);
  const LayerReadout readout = readouts_of(model).at(0);
  Residuals residuals;
  std::vector<std::vector<int32_t>> chunks(2);
  for (int i = 0; i < 2 * kContext; ++i) chunks[static_cast<size_t>(i / kContext)].push_back(5 + i * 7 % 50);
  observe_chunks(model, chunks, 1, {.observe = [](const Observation&) {}, .tensors = &residuals});
  const std::vector<double>& squares = residuals.squares.at("ffn_inp-0");
  ASSERT_EQ(squares.size(), static_cast<size_t>(2 * kContext));
  double inverse = 0.0;
  for (double x : squares) inverse += 1.0 / x / static_cast<double>(squares.size());
  const ModelFiles files = ModelFiles::open(model.path());
  const GgufTensor* tensor = files.find_tensor("blk.0.attn_output.weight");
  const float* w = reinterpret_cast<const float*>(tensor->data.data());
  double square = 0.0;  // of the first column
  for (size_t o = 0; o < tensor->ne[1]; ++o) square += std::pow(w[o * tensor->ne[0]], 2);
  const double wanted = std::sqrt(inverse) * square;
  EXPECT_NEAR(readout.metric[0], wanted, 1e-4 * wanted);
}

}  // namespace
}  // namespace headq
