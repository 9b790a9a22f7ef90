#include "core/gguf.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>

#include "core/error_of.h"

namespace headq {
namespace {

using Bytes = std::vector<uint8_t>;

// Puts GGUF bytes together by hand, right or wrong.
class Raw {
 public:
  Raw(uint64_t n_tensors, uint64_t n_pairs, uint32_t version = 3) {
    text("GGUF").put(version).put(n_tensors).put(n_pairs);
  }
  template <typename T>
  Raw& put(T value) {
    const auto* p = reinterpret_cast<const uint8_t*>(&value);
    for (size_t i = 0; i < sizeof value; ++i) bytes_.push_back(p[i]);
    return *this;
  }
  Raw& text(const std::string& s) {
    for (char c : s) bytes_.push_back(static_cast<uint8_t>(c));
    return *this;
  }
  Raw& string(const std::string& s) { return put<uint64_t>(s.size()).text(s); }
  Raw& key(const std::string& s, GgufType type) {
    return string(s).put(static_cast<uint32_t>(type));
  }
  Raw& array(const std::string& s, GgufType element, uint64_t n) {
    return key(s, GgufType::kArray).put(static_cast<uint32_t>(element)).put(n);
  }
  Raw& tensor(const std::string& name, std::vector<uint64_t> ne, uint32_t type, uint64_t offset) {
    string(name).put(static_cast<uint32_t>(ne.size()));
    for (uint64_t size : ne) put(size);
    return put(type).put(offset);
  }
  Raw& pad(size_t alignment = 32) {
    while (bytes_.size() % alignment != 0) bytes_.push_back(0);
    return *this;
  }
  Raw& zeros(size_t n) {
    bytes_.resize(bytes_.size() + n);
    return *this;
  }
  const Bytes& bytes() const { return bytes_; }
  GgufFile parse() const { return GgufFile::parse(bytes_, "raw"); }

 private:
  Bytes bytes_;
};

std::vector<float> ramp(size_t n) {
  std::vector<float> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<float>(i) * 0.5f - 3.0f;
  return out;
}

// A file with a bit of everything the writer can write.
Bytes sample() {
  static const std::vector<float> a = ramp(6), b = ramp(40);
  GgufWriter out;
  out.add_string("general.type", "sample");
  out.add_u32("a.u32", 7);
  out.add_u64("a.u64", uint64_t{1} << 40);
  out.add_i32s("a.i32s", std::vector<int32_t>{3, -1, 2});
  out.add_strings("a.strings", std::vector<std::string>{"one", "", "three"});
  out.add_f32("t.a", std::vector<uint64_t>{3, 2}, a);
  out.add_f32("t.b", std::vector<uint64_t>{2, 2, 10}, b);
  return out.finish();
}

TEST(Gguf, ReadsWhatItWrites) {
  const Bytes bytes = sample();
  const GgufFile file = GgufFile::parse(bytes, "sample");
  EXPECT_EQ(file.version(), 3u);
  EXPECT_EQ(file.find("general.type")->as_string(), "sample");
  EXPECT_EQ(file.find("a.u32")->as_int(), 7);
  EXPECT_EQ(file.find("a.u64")->as_int(), int64_t{1} << 40);
  EXPECT_EQ(file.find("a.i32s")->as_ints(), (std::vector<int64_t>{3, -1, 2}));
  EXPECT_EQ(file.find("a.strings")->as_strings(), (std::vector<std::string>{"one", "", "three"}));
  EXPECT_EQ(file.find("nothing"), nullptr);

  ASSERT_EQ(file.tensors().size(), 2u);
  const GgufTensor* tensor = file.find_tensor("t.b");
  ASSERT_NE(tensor, nullptr);
  EXPECT_EQ(tensor->type, kTensorF32);
  EXPECT_EQ(tensor->n_dims, 3);
  EXPECT_EQ(tensor->ne, (std::array<uint64_t, 4>{2, 2, 10, 1}));
  const std::vector<float> expected = ramp(40);
  ASSERT_EQ(tensor->data.size(), 160u);
  EXPECT_EQ(std::memcmp(tensor->data.data(), expected.data(), 160), 0);
  EXPECT_EQ((tensor->data.data() - bytes.data()) % 32, 0);
  EXPECT_EQ(file.end(), bytes.size());  // 160 bytes need no padding
}

TEST(Gguf, WriterPadsEveryTensorWithZeros) {
  const std::vector<float> one = {1.0f};
  GgufWriter out;
  out.add_f32("t", std::vector<uint64_t>{1}, one);
  const Bytes bytes = out.finish();
  EXPECT_EQ(bytes.size() % 32, 0u);
  const GgufFile file = GgufFile::parse(bytes, "t");
  EXPECT_EQ(bytes.size() - file.end(), 28u);
  for (size_t i = file.end(); i < bytes.size(); ++i) EXPECT_EQ(bytes[i], 0);
}

TEST(Gguf, WriterRefusesDataOfAnotherSize) {
  const std::vector<float> data = ramp(5);
  GgufWriter out;
  EXPECT_ERROR(out.add_f32("t", std::vector<uint64_t>{3, 2}, data), ErrorCode::kInvalidArgument,
               "5 elements for a shape of 6");
}

TEST(Gguf, ReadsScalarsOfEveryType) {
  Raw raw(0, 12);
  raw.key("u8", GgufType::kU8).put<uint8_t>(200);
  raw.key("i8", GgufType::kI8).put<int8_t>(-3);
  raw.key("u16", GgufType::kU16).put<uint16_t>(60000);
  raw.key("i16", GgufType::kI16).put<int16_t>(-300);
  raw.key("u32", GgufType::kU32).put<uint32_t>(4000000000u);
  raw.key("i32", GgufType::kI32).put<int32_t>(-70000);
  raw.key("f32", GgufType::kF32).put<float>(1.5f);
  raw.key("bool", GgufType::kBool).put<uint8_t>(1);
  raw.key("string", GgufType::kString).string("text");
  raw.key("u64", GgufType::kU64).put<uint64_t>(UINT64_MAX);
  raw.key("i64", GgufType::kI64).put<int64_t>(-5);
  raw.key("f64", GgufType::kF64).put<double>(2.5);
  const GgufFile file = raw.parse();
  EXPECT_EQ(file.find("u8")->as_int(), 200);
  EXPECT_EQ(file.find("i8")->as_int(), -3);
  EXPECT_EQ(file.find("u16")->as_int(), 60000);
  EXPECT_EQ(file.find("i16")->as_int(), -300);
  EXPECT_EQ(file.find("u32")->as_int(), 4000000000);
  EXPECT_EQ(file.find("i32")->as_int(), -70000);
  EXPECT_EQ(file.find("f32")->as_int(), std::nullopt);
  EXPECT_EQ(file.find("bool")->as_int(), 1);
  EXPECT_EQ(file.find("string")->as_string(), "text");
  EXPECT_EQ(file.find("string")->as_int(), std::nullopt);
  EXPECT_EQ(file.find("u64")->as_int(), std::nullopt);  // above int64_t
  EXPECT_EQ(file.find("i64")->as_int(), -5);
  EXPECT_EQ(file.find("f64")->as_int(), std::nullopt);
  EXPECT_EQ(file.find("u8")->as_ints(), std::nullopt);
  EXPECT_EQ(file.find("u8")->as_string(), std::nullopt);
}

TEST(Gguf, ReadsArraysOfEveryType) {
  Raw raw(0, 5);
  raw.array("bool", GgufType::kBool, 2).put<uint8_t>(0).put<uint8_t>(1);
  raw.array("i16", GgufType::kI16, 2).put<int16_t>(-1).put<int16_t>(2);
  raw.array("f64", GgufType::kF64, 1).put<double>(1.0);
  raw.array("string", GgufType::kString, 2).string("x").string("yz");
  raw.array("empty", GgufType::kU32, 0);
  const GgufFile file = raw.parse();
  EXPECT_EQ(file.find("bool")->as_ints(), (std::vector<int64_t>{0, 1}));
  EXPECT_EQ(file.find("i16")->as_ints(), (std::vector<int64_t>{-1, 2}));
  EXPECT_EQ(file.find("f64")->as_ints(), std::nullopt);
  EXPECT_EQ(file.find("string")->as_strings(), (std::vector<std::string>{"x", "yz"}));
  EXPECT_EQ(file.find("string")->as_ints(), std::nullopt);
  EXPECT_EQ(file.find("empty")->as_ints(), std::vector<int64_t>());
  EXPECT_EQ(file.find("i16")->as_int(), std::nullopt);
}

TEST(Gguf, HonoursTheAlignmentOfTheFile) {
  Raw raw(2, 1);
  raw.key("general.alignment", GgufType::kU32).put<uint32_t>(8);
  raw.tensor("a", {1}, 0, 0).tensor("b", {1}, 0, 8).pad(8);
  const size_t data = raw.bytes().size();
  raw.zeros(12);
  const GgufFile file = raw.parse();
  EXPECT_EQ(file.find_tensor("b")->data.data() - raw.bytes().data(),
            static_cast<ptrdiff_t>(data + 8));
}

TEST(Gguf, KnowsPackedTensorTypes) {
  Raw raw(1, 0);
  raw.tensor("q", {64, 3}, 2, 0).pad().zeros(2 * 18 * 3);  // Q4_0: 32 elements in 18 bytes
  EXPECT_EQ(raw.parse().find_tensor("q")->data.size(), 108u);
  Raw odd(1, 0);
  odd.tensor("q", {33, 3}, 2, 0).pad().zeros(1000);
  EXPECT_ERROR(odd.parse(), ErrorCode::kCorrupt, "no multiple of 32");
}

TEST(Gguf, RefusesWhatIsNotGguf) {
  EXPECT_ERROR(GgufFile::parse({}, "empty"), ErrorCode::kCorrupt, "empty: not a GGUF file");
  const Bytes text = {'G', 'G', 'M', 'L', 1, 0, 0, 0};
  EXPECT_ERROR(GgufFile::parse(text, "old"), ErrorCode::kCorrupt, "not a GGUF file");
}

TEST(Gguf, RefusesVersionsItDoesNotKnow) {
  EXPECT_NO_THROW(Raw(0, 0, 2).parse());
  for (uint32_t version : {0u, 1u, 4u, 0x03000000u}) {
    EXPECT_ERROR(Raw(0, 0, version).parse(), ErrorCode::kUnsupported, "GGUF version");
  }
}

// Counts and lengths that only a hostile file has; each must be caught before memory is taken.
TEST(Gguf, RefusesLengthsBeyondTheFile) {
  constexpr uint64_t kHuge[] = {1u << 30, uint64_t{1} << 40, uint64_t{1} << 62, UINT64_MAX,
                                UINT64_MAX - 7};
  for (uint64_t n : kHuge) {
    EXPECT_ERROR(Raw(0, n).parse(), ErrorCode::kCorrupt, "the file ends");
    EXPECT_ERROR(Raw(n, 0).parse(), ErrorCode::kCorrupt, "the file ends");
    EXPECT_ERROR(Raw(0, 1).put(n).text("key").parse(), ErrorCode::kCorrupt, "the file ends");
    EXPECT_ERROR(Raw(0, 1).key("k", GgufType::kString).put(n).text("x").parse(),
                 ErrorCode::kCorrupt, "the file ends");
    EXPECT_ERROR(Raw(0, 1).array("k", GgufType::kString, n).string("x").parse(),
                 ErrorCode::kCorrupt, "the file ends");
    for (GgufType type : {GgufType::kU8, GgufType::kU16, GgufType::kU32, GgufType::kF64}) {
      EXPECT_ERROR(Raw(0, 1).array("k", type, n).put<uint64_t>(0).parse(), ErrorCode::kCorrupt, "");
    }
    EXPECT_ERROR(Raw(1, 0).tensor("t", {n}, 0, 0).pad().zeros(64).parse(), ErrorCode::kCorrupt,
                 "larger than the file");
    EXPECT_ERROR(Raw(1, 0).tensor("t", {n, n, n, n}, 0, 0).pad().zeros(64).parse(),
                 ErrorCode::kCorrupt, "larger than the file");
  }
}

TEST(Gguf, RefusesShapesWhoseProductWraps) {
  const uint64_t half = uint64_t{1} << 32;  // half * half is 0 in 64 bits
  EXPECT_ERROR(Raw(1, 0).tensor("t", {half, half}, 0, 0).pad().zeros(64).parse(),
               ErrorCode::kCorrupt, "larger than the file");
  EXPECT_ERROR(Raw(1, 0).tensor("t", {1, uint64_t{1} << 62}, 0, 0).pad().zeros(64).parse(),
               ErrorCode::kCorrupt, "larger than the file");
}

TEST(Gguf, RefusesTensorsThatOverlapOrLeaveGaps) {
  const auto two = [](uint64_t second) {
    return Raw(2, 0).tensor("a", {8}, 0, 0).tensor("b", {8}, 0, second).pad().zeros(96);
  };
  EXPECT_NO_THROW(two(32).parse());
  for (uint64_t offset : {uint64_t{0}, uint64_t{4}, uint64_t{64}, UINT64_MAX - 31}) {
    EXPECT_ERROR(two(offset).parse(), ErrorCode::kCorrupt, "tensor 'b' is at offset");
  }
}

TEST(Gguf, RefusesTensorsBehindTheEnd) {
  EXPECT_NO_THROW(Raw(1, 0).tensor("a", {8}, 0, 0).pad().zeros(32).parse());
  EXPECT_ERROR(Raw(1, 0).tensor("a", {8}, 0, 0).pad().zeros(31).parse(), ErrorCode::kCorrupt,
               "beyond the end");
  EXPECT_ERROR(Raw(1, 0).tensor("a", {8}, 0, 0).parse(), ErrorCode::kCorrupt, "beyond the end");
}

TEST(Gguf, RefusesMalformedEntries) {
  EXPECT_ERROR(Raw(0, 1).key("k", static_cast<GgufType>(13)).put(0).parse(), ErrorCode::kCorrupt,
               "'k' has type 13");
  EXPECT_ERROR(Raw(0, 1).array("k", GgufType::kArray, 1).put<uint64_t>(0).parse(),
               ErrorCode::kCorrupt, "array of arrays");
  Raw twice(0, 2);
  twice.key("k", GgufType::kU8).put<uint8_t>(0).key("k", GgufType::kU8).put<uint8_t>(0);
  EXPECT_ERROR(twice.parse(), ErrorCode::kCorrupt, "'k' is there twice");
  EXPECT_ERROR(Raw(2, 0).tensor("t", {0}, 0, 0).tensor("t", {0}, 0, 0).pad().parse(),
               ErrorCode::kCorrupt, "tensor 't' is there twice");
  EXPECT_ERROR(Raw(1, 0).tensor("t", {1, 1, 1, 1, 1}, 0, 0).pad().zeros(32).parse(),
               ErrorCode::kCorrupt, "5 dimensions");
  for (uint32_t type : {4u, 31u, 43u, UINT32_MAX}) {
    EXPECT_ERROR(Raw(1, 0).tensor("t", {32}, type, 0).pad().zeros(999).parse(),
                 ErrorCode::kUnsupported, "which is not known");
  }
  for (uint32_t alignment : {0u, 3u, 48u, 1u << 30}) {
    EXPECT_ERROR(Raw(0, 1).key("general.alignment", GgufType::kU32).put(alignment).parse(),
                 ErrorCode::kCorrupt, "power of two");
  }
  EXPECT_ERROR(Raw(0, 1).key("general.alignment", GgufType::kU64).put<uint64_t>(32).parse(),
               ErrorCode::kCorrupt, "power of two");
}

TEST(Gguf, KeepsMessagesPrintable) {
  Raw raw(0, 1);
  raw.key("bad\nkey\x01" + std::string(200, 'x'), static_cast<GgufType>(99)).put(0);
  const auto error = testing::error_of([&] { raw.parse(); });
  ASSERT_TRUE(error.has_value());
  EXPECT_LT(std::string(error->what()).size(), 200u);
  for (const char* c = error->what(); *c != 0; ++c) EXPECT_GE(*c, ' ');
}

TEST(Gguf, RefusesEveryTruncation) {
  const Bytes bytes = sample();
  const size_t end = GgufFile::parse(bytes, "whole").end();
  for (size_t n = 0; n < end; ++n) {
    // A copy of that size, so that a read behind its end is seen by the sanitizer.
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
    EXPECT_TRUE(testing::error_of([&] { GgufFile::parse(cut, "cut"); }).has_value()) << n;
  }
}

// Damaged files are read or refused, and every value that is read can be looked at.
TEST(Gguf, SurvivesDamage) {
  const Bytes bytes = sample();
  std::mt19937 random(1);
  size_t refused = 0;
  constexpr size_t kTries = 20000;
  for (size_t i = 0; i < kTries; ++i) {
    Bytes damaged = bytes;
    for (int k = 0; k < 1 + static_cast<int>(i % 3); ++k) {
      damaged[random() % 320] = static_cast<uint8_t>(random());
    }
    const auto error = testing::error_of([&] {
      const GgufFile file = GgufFile::parse(damaged, "damaged");
      for (const auto& [key, value] : file.pairs()) {
        value.as_int();
        value.as_ints();
        value.as_string();
        value.as_strings();
      }
      for (const GgufTensor& tensor : file.tensors()) {
        EXPECT_LE(tensor.data.data() + tensor.data.size(), damaged.data() + damaged.size());
      }
    });
    refused += error.has_value() ? 1 : 0;
  }
  EXPECT_GT(refused, kTries / 4);  // most of the first 320 bytes is structure
}

}  // namespace
}  // namespace headq
