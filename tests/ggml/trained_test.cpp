// Controls on a trained model: babyllama_tok105 of the data folder (HEADQ_DATA_DIR), a Llama of 0.9
// M weights that writes children's stories letter by letter. Skipped where the folder is not there.
#include <gguf.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>
#include <iterator>
#include <memory>
#include <random>
#include <stdexcept>

#include "ggml/calibrated.h"
#include "ggml/compare.h"
#include "ggml/session.h"
#include "models/tiny_gguf.h"
#include "optional_data.h"

namespace headq::testing {
namespace {

constexpr int kContext = 256;  // what the model was trained for
constexpr int kFirst = 128;    // rows from here on are scored

// A checkpoint of llama2.c: seven int32, then f32 matrices, each of all layers.
class Checkpoint {
 public:
  explicit Checkpoint(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
    if (bytes_.size() < sizeof header_) throw std::runtime_error("cannot read " + path);
    std::memcpy(header_, bytes_.data(), sizeof header_);
    at_ = sizeof header_;
  }

  // Writes it as GGUF.
  void convert(const std::string& path) {
    const auto [dim, hidden, n_layer, n_head, n_head_kv, n_vocab, n_ctx] = header_;
    const int kv = dim / n_head * n_head_kv;
    TinyGguf out("llama");
    gguf_set_val_str(out.raw(), "general.name", "babyllama_tok105");
    gguf_set_val_str(out.raw(), "tokenizer.ggml.model", "none");
    out.set_u32("vocab_size", n_vocab);
    out.set_u32("context_length", n_ctx);
    out.set_u32("embedding_length", dim);
    out.set_u32("block_count", n_layer);
    out.set_u32("feed_forward_length", hidden);
    out.set_u32("attention.head_count", n_head);
    out.set_u32("attention.head_count_kv", n_head_kv);
    out.set_u32("rope.dimension_count", dim / n_head);
    out.set_f32("rope.freq_base", 10000.0);
    out.set_f32("attention.layer_norm_rms_epsilon", 1e-5);
    out.add("token_embd.weight", {dim, n_vocab}, take(dim * n_vocab));
    const auto layers = [&](const std::string& name, std::vector<int64_t> ne) {
      int64_t n = 1;
      for (int64_t x : ne) n *= x;
      for (int il = 0; il < n_layer; ++il) {
        out.add("blk." + std::to_string(il) + "." + name + ".weight", ne, take(n));
      }
    };
    layers("attn_norm", {dim});
    layers("attn_q", {dim, dim});
    layers("attn_k", {dim, kv});
    layers("attn_v", {dim, kv});
    layers("attn_output", {dim, dim});
    layers("ffn_norm", {dim});
    layers("ffn_gate", {dim, hidden});
    layers("ffn_down", {hidden, dim});
    layers("ffn_up", {dim, hidden});
    out.add("output_norm.weight", {dim}, take(dim));
    out.write(path);
  }

 private:
  std::vector<float> take(int64_t n) {
    std::vector<float> out(static_cast<size_t>(n));
    if (at_ + out.size() * sizeof(float) > bytes_.size()) throw std::runtime_error("too short");
    std::memcpy(out.data(), bytes_.data() + at_, out.size() * sizeof(float));
    at_ += out.size() * sizeof(float);
    return out;
  }

  int32_t header_[7];
  std::vector<char> bytes_;
  size_t at_ = 0;
};

// Text that the model writes itself, drawn from its own probabilities.
std::vector<int32_t> story(const Model& model, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<int32_t> tokens = {1};  // begin of text
  Session session(model, {.n_ctx = kContext});
  while (static_cast<int>(tokens.size()) < kContext) {
    const Logits logits =
        session.decode(std::span(tokens).last(1), static_cast<int>(tokens.size()) - 1);
    std::vector<double> weights;
    for (float x : logits.row(0)) weights.push_back(std::exp(static_cast<double>(x)));
    weights[1] = weights[2] = 0.0;  // one story fills the context
    tokens.push_back(std::discrete_distribution<int32_t>(weights.begin(), weights.end())(random));
  }
  return tokens;
}

class Trained : public ::testing::Test {
 protected:
  static constexpr int kCalibrated = 10, kHeldOut = 6;

  static void SetUpTestSuite() {
    if (data_dir().empty()) return;
    const std::string path = scratch_dir() + "/babyllama.gguf";
    Checkpoint(data_dir() + "/models/babyllama_tok105/model5000.bin").convert(path);
    model_ = std::make_unique<Model>(path, Backend::kHeadq);
    for (int i = 0; i < kCalibrated + kHeldOut; ++i) {
      texts_.push_back(story(*model_, static_cast<uint64_t>(i)));
    }
  }
  static void TearDownTestSuite() { model_.reset(); }

  void SetUp() override { HEADQ_NEEDS_DATA_DIR(); }

  static std::string profile(const std::string& kv) {
    std::string name = kv;
    std::replace(name.begin(), name.end(), '/', '-');
    return calibrate(*model_, name, kv, std::span(texts_).first(kCalibrated));
  }

  // Mean over the held-out texts against dense rows.
  static double kld(const std::string& kv, const std::string& profile) {
    double sum = 0.0;
    for (int i = kCalibrated; i < kCalibrated + kHeldOut; ++i) {
      const std::vector<int32_t>& text = texts_[static_cast<size_t>(i)];
      const auto scored = [&](const SessionConfig& config) {
        return run(*model_, config, text, kContext).rows(kFirst, kContext);
      };
      sum += mean_kld(scored({.n_ctx = kContext}),
                      scored({.kv = kv, .profile = profile, .n_ctx = kContext})) /
             kHeldOut;
    }
    return sum;
  }

  static std::unique_ptr<Model> model_;
  static std::vector<std::vector<int32_t>> texts_;
};

std::unique_ptr<Model> Trained::model_;
std::vector<std::vector<int32_t>> Trained::texts_;

// The model is what it should be: it knows its own language far better than chance (ln 105 = 4.7).
TEST_F(Trained, PredictsItsText) {
  const Logits logits = run(*model_, {.n_ctx = kContext}, texts_.back(), kContext);
  double sum = 0.0;
  for (int i = kFirst; i + 1 < kContext; ++i) {
    const std::span<const float> row = logits.row(i);
    double all = 0.0;
    for (float x : row) all += std::exp(static_cast<double>(x));
    sum += std::log(all) - row[static_cast<size_t>(texts_.back()[static_cast<size_t>(i) + 1])];
  }
  EXPECT_LT(sum / (kContext - 1 - kFirst), 2.0);
}

TEST_F(Trained, ControlsOfNibAreWorse) {
  const std::string nib2 = profile("nib2"), random = profile("nib2@random");
  const double kept = kld("nib2", nib2);
  EXPECT_GT(kept, 1e-6);
  EXPECT_LT(kept, 0.9 * kld("nib2@random", random));
  EXPECT_GT(kld("nib2-last2", nib2), 1.2 * kept);
  EXPECT_GT(kld("nib2-last8", nib2), 3.0 * kept);
}

TEST_F(Trained, MoreBitsDoLessDamage) {
  const double nib1 = kld("nib1", profile("nib1")), nib2 = kld("nib2", profile("nib2")),
               nib4 = kld("nib4", profile("nib4"));
  EXPECT_LT(nib2, 0.7 * nib1);
  EXPECT_LT(nib4, 0.3 * nib2);
  EXPECT_LT(nib2, kld("kivi2", ""));  // 2.5 bits and more
}

}  // namespace
}  // namespace headq::testing
