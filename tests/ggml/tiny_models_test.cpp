// The generated models on the plain CPU backend: they load, decode, and attend like real ones, so
// that a cache that spoils attention shows in the logits.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "ggml/compare.h"
#include "ggml/session.h"

namespace headq::testing {
namespace {

class TinyModels : public ::testing::TestWithParam<TinyFamily> {};

INSTANTIATE_TEST_SUITE_P(Families, TinyModels, ::testing::ValuesIn(all_tiny_families()),
                         [](const auto& info) { return std::string(to_string(info.param)); });

// Sum of softmax row entropies, each divided by the log of its number of visible cells.
struct EntropyProbe {
  double sum = 0.0;
  int64_t n_rows = 0;

  static bool on_tensor(ggml_tensor* tensor, bool ask, void* user) {
    if (std::strncmp(tensor->name, "kq_soft_max", 11) != 0) return false;
    if (!ask) static_cast<EntropyProbe*>(user)->add(*tensor);
    return true;
  }

  void add(const ggml_tensor& softmax) {  // [n_kv][rows][heads]
    std::vector<float> p(ggml_nelements(&softmax));
    ggml_backend_tensor_get(&softmax, p.data(), 0, p.size() * sizeof(float));
    for (size_t begin = 0; begin < p.size(); begin += softmax.ne[0]) {
      double entropy = 0.0;
      int visible = 0;
      for (int64_t j = 0; j < softmax.ne[0]; ++j) {
        const double weight = p[begin + j];
        if (weight <= 0.0) continue;
        entropy -= weight * std::log(weight);
        ++visible;
      }
      if (visible < 32) continue;
      sum += entropy / std::log(visible);
      ++n_rows;
    }
  }
};

TEST_P(TinyModels, SoftmaxRowsAreNeitherFlatNorOneHot) {
  const Model model({.family = GetParam()}, Backend::kCpu);
  EntropyProbe probe;
  Session session(
      model, {.flash_attn = false, .on_tensor = EntropyProbe::on_tensor, .on_tensor_data = &probe});
  session.decode(tiny_tokens(200, 1));
  ASSERT_GT(probe.n_rows, 0);
  const double relative_entropy = probe.sum / static_cast<double>(probe.n_rows);
  EXPECT_LT(relative_entropy, 0.75);
  EXPECT_GT(relative_entropy, 0.2);
}

TEST_P(TinyModels, LogitsDependOnOldCells) {
  const Model model({.family = GetParam()}, Backend::kCpu);
  const std::vector<int32_t> tokens = tiny_tokens(120, 2);
  Session whole(model, {});
  Session gap(model, {});
  whole.decode(std::span(tokens).first(119));
  gap.decode(std::span(tokens).first(119));
  ASSERT_TRUE(llama_memory_seq_rm(gap.memory(), 0, 80, 100));
  const std::vector<int32_t> last = {tokens.back()};
  EXPECT_GT(max_difference(whole.decode(last, 119), gap.decode(last, 119)), 0.1);
}

TEST_P(TinyModels, LogitsAreOfOrdinarySize) {
  const Model model({.family = GetParam()}, Backend::kCpu);
  Session session(model, {});
  const Logits logits = session.decode(tiny_tokens(100, 3));
  ASSERT_TRUE(all_finite(logits));
  double power = 0.0;
  for (float x : logits.data) power += static_cast<double>(x) * x;
  const double rms = std::sqrt(power / static_cast<double>(logits.data.size()));
  EXPECT_GT(rms, 0.5);
  EXPECT_LT(rms, 5.0);
}

std::string read_file(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

TEST_P(TinyModels, SameConfigGivesSameBytes) {
  const TinyModelConfig config{.family = GetParam()};
  const std::string other_dir = scratch_dir() + "/again";
  std::filesystem::create_directories(other_dir);
  const std::string bytes = read_file(tiny_model_path(config));
  ASSERT_FALSE(bytes.empty());
  EXPECT_EQ(bytes, read_file(write_tiny_model(config, other_dir)));
  TinyModelConfig reseeded = config;
  reseeded.seed = 2;
  EXPECT_NE(bytes, read_file(tiny_model_path(reseeded)));
}

TEST(TinyTokenizer, TextSurvivesTheRoundTrip) {
  const Model model({.family = TinyFamily::kLlama}, Backend::kCpu);
  const llama_vocab* vocab = llama_model_get_vocab(model.raw());
  const std::string text = tiny_text(40, 4) + " \xC3\xA9t\xC3\xA9 {42}";  // letters beyond ASCII
  std::vector<llama_token> tokens(2 * text.size() + 8);
  const int n = llama_tokenize(vocab, text.data(), static_cast<int>(text.size()), tokens.data(),
                               static_cast<int>(tokens.size()), true, false);
  ASSERT_GT(n, 40);
  EXPECT_EQ(tokens[0], llama_vocab_bos(vocab));
  std::vector<char> back(2 * text.size() + 8);
  const int n_back = llama_detokenize(vocab, tokens.data() + 1, n - 1, back.data(),
                                      static_cast<int>(back.size()), true, false);
  ASSERT_GT(n_back, 0);
  EXPECT_EQ(std::string(back.data(), n_back), text);
}

TEST(TinyModelConfigs, ImpossibleOnesAreRefused) {
  EXPECT_THROW(tiny_model_path({.family = TinyFamily::kGpt2, .n_embd = 100}),
               std::invalid_argument);
  EXPECT_THROW(tiny_model_path({.n_head = 4, .n_head_kv = 3}), std::invalid_argument);
  EXPECT_THROW(tiny_model_path({.head_dim = 30}), std::invalid_argument);
}

}  // namespace
}  // namespace headq::testing
