#include "runner/readout.h"

#include <fmt/format.h>
#include <ggml-backend.h>
#include <ggml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <optional>
#include <string_view>

namespace headq {
namespace {

enum class Role { kResidual, kAttention, kNormed };

struct Named {
  Role role;
  int layer;
};

// What a tensor of llama.cpp's graphs is, by its name "what-layer".
std::optional<Named> named(const ggml_tensor& tensor) {
  const std::string_view name = tensor.name;
  const size_t dash = name.rfind('-');
  if (dash == std::string_view::npos) return std::nullopt;
  int layer = 0;
  const auto [end, error] = std::from_chars(name.data() + dash + 1, name.data() + name.size(), layer);
  if (error != std::errc() || end != name.data() + name.size()) return std::nullopt;
  const std::string_view what = name.substr(0, dash);
  if (what == "ffn_inp" || what == "sa_out") return Named{Role::kResidual, layer};
  if (what == "kqv_out") return Named{Role::kAttention, layer};
  if (what == "attn_post_norm") return Named{Role::kNormed, layer};
  return std::nullopt;
}

constexpr size_t kProjectedRows = 32;  // of a chunk, for the energy before a normalisation

}  // namespace

void ReadoutObserver::Energy::add(const float* rows, size_t width, size_t n_rows) {
  for (size_t i = 0; i < n_rows; ++i) {
    double square = 0.0;
    for (size_t c = 0; c < width; ++c) square += static_cast<double>(rows[i * width + c]) * rows[i * width + c];
    if (!(square > 0.0)) continue;
    sum += square;
    inverse_sum += 1.0 / square;
    n += 1.0;
  }
}

ReadoutObserver::ReadoutObserver(const Model& model)
    : model_(model), files_(ModelFiles::open(model.path())) {}

bool ReadoutObserver::wants(const ggml_tensor& tensor) {
  return tensor.type == GGML_TYPE_F32 && named(tensor).has_value();
}

void ReadoutObserver::take(const ggml_tensor& tensor) {
  const Named what = *named(tensor);
  const size_t width = static_cast<size_t>(tensor.ne[0]);
  const size_t n_rows = static_cast<size_t>(ggml_nrows(&tensor));
  std::vector<float> rows(width * n_rows);
  ggml_backend_tensor_get(&tensor, rows.data(), 0, rows.size() * sizeof(float));
  LayerEnergies& layer = layers_[what.layer];
  if (what.role == Role::kResidual) layer.residual.add(rows.data(), width, n_rows);
  if (what.role == Role::kNormed) layer.normed.add(rows.data(), width, n_rows);
  const std::string norm = fmt::format("blk.{}.post_attention_norm.weight", what.layer);
  if (what.role != Role::kAttention || files_.find_tensor(norm) == nullptr) return;
  const Weight w = output_weight(what.layer);
  if (static_cast<size_t>(w.cols()) != width) return;
  const size_t step = std::max<size_t>(1, n_rows / kProjectedRows);
  for (size_t i = 0; i < n_rows; i += step) {
    const Eigen::VectorXf out = w * Eigen::Map<const Eigen::VectorXf>(rows.data() + i * width, w.cols());
    layer.projected.add(out.data(), static_cast<size_t>(w.rows()), 1);
  }
}

// W_O of a layer; empty when the file has none that ggml can read.
ReadoutObserver::Weight ReadoutObserver::output_weight(int layer) const {
  const GgufTensor* tensor = files_.find_tensor(fmt::format("blk.{}.attn_output.weight", layer));
  if (tensor == nullptr || tensor->n_dims != 2 || tensor->type >= GGML_TYPE_COUNT) return {};
  const Eigen::Index n_in = static_cast<Eigen::Index>(tensor->ne[0]);
  const Eigen::Index n_out = static_cast<Eigen::Index>(tensor->ne[1]);
  const ggml_type type = static_cast<ggml_type>(tensor->type);
  if (tensor->data.size() < ggml_row_size(type, n_in) * static_cast<size_t>(n_out)) return {};
  const ggml_to_float_t to_float = ggml_get_type_traits(type)->to_float;
  if (to_float == nullptr && type != GGML_TYPE_F32) return {};
  Weight out(n_out, n_in);
  if (type == GGML_TYPE_F32) {
    std::memcpy(out.data(), tensor->data.data(), static_cast<size_t>(out.size()) * sizeof(float));
  } else {
    to_float(tensor->data.data(), out.data(), out.size());
  }
  return out;
}

std::map<int, LayerReadout> ReadoutObserver::readouts() const {
  std::map<int, LayerReadout> out;
  for (const auto& [il, energies] : layers_) {
    const size_t index = static_cast<size_t>(il);
    if (il < 0 || index >= model_.info().layers.size() || energies.residual.n == 0.0) continue;
    const int d = model_.info().layers[index].d_v;
    const Weight w = output_weight(il);
    if (d <= 0 || w.size() == 0 || w.cols() % d != 0) continue;
    double factor = std::sqrt(energies.residual.mean_inverse());
    if (energies.normed.n > 0.0 && energies.projected.n > 0.0) {
      factor *= energies.normed.mean() / energies.projected.mean();
    }
    LayerReadout& readout = out[il];
    readout.d_v = d;
    for (Eigen::Index first = 0; first < w.cols(); first += d) {
      const auto own = w.middleCols(first, d);
      const Eigen::MatrixXf metric = static_cast<float>(factor) * (own.transpose() * own);
      readout.metric.insert(readout.metric.end(), metric.data(), metric.data() + metric.size());
    }
  }
  return out;
}

}  // namespace headq
