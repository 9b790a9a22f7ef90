#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "codec/profile_file.h"
#include "codec/sample_profile.h"
#include "core/error_of.h"
#include "core/file.h"
#include "core/gguf.h"
#include "core/sha256.h"
#include "core/temp_dir.h"

namespace headq {
namespace {

using testing::error_of;
using testing::put_file;
using testing::sample_profile;
using testing::TempDir;

using Bytes = std::vector<uint8_t>;

Bytes sample_bytes() { return serialize_profile(sample_profile()); }

Profile parse(const Bytes& bytes) { return parse_profile(bytes, "p"); }

// Where text lies in the file.
size_t find(const Bytes& bytes, const std::string& text) {
  const auto it = std::search(bytes.begin(), bytes.end(), text.begin(), text.end());
  EXPECT_NE(it, bytes.end()) << text;
  return static_cast<size_t>(it - bytes.begin());
}

// Makes the checksum right again, so that the checks behind it are reached.
void seal(Bytes& bytes) {
  const size_t at = find(bytes, "headq.checksum") + 14 + 4 + 8;  // key, type, length
  std::fill_n(bytes.begin() + static_cast<ptrdiff_t>(at), 64, '0');
  const std::string digest = sha256_hex(bytes);
  std::copy(digest.begin(), digest.end(), bytes.begin() + static_cast<ptrdiff_t>(at));
}

// The value of a u32 pair.
uint8_t* u32_value(Bytes& bytes, const std::string& key) {
  return bytes.data() + find(bytes, key) + key.size() + 4;
}

TEST(Profile, LoadsWhatItSaved) {
  const TempDir dir;
  const Profile saved = sample_profile();
  saved.save(dir.file("p"));
  const Profile loaded = Profile::load(dir.file("p"));
  EXPECT_EQ(loaded.model_name, saved.model_name);
  EXPECT_EQ(loaded.model_arch, saved.model_arch);
  EXPECT_EQ(loaded.model_fingerprint, saved.model_fingerprint);
  EXPECT_EQ(loaded.tool_version, saved.tool_version);
  EXPECT_EQ(loaded.sources, saved.sources);
  EXPECT_EQ(loaded.n_tokens, saved.n_tokens);
  EXPECT_EQ(loaded.n_ctx, saved.n_ctx);
  EXPECT_EQ(loaded.n_basis, saved.n_basis);
  EXPECT_EQ(loaded.layer_ids, saved.layer_ids);
  EXPECT_EQ(loaded.shapes, saved.shapes);
  ASSERT_EQ(loaded.heads.size(), saved.heads.size());
  for (size_t h = 0; h < saved.heads.size(); ++h) {
    EXPECT_EQ(loaded.heads[h].query_basis, saved.heads[h].query_basis);
    EXPECT_EQ(loaded.heads[h].query_spectrum, saved.heads[h].query_spectrum);
    EXPECT_EQ(loaded.heads[h].key_basis, saved.heads[h].key_basis);
    EXPECT_EQ(loaded.heads[h].key_spectrum, saved.heads[h].key_spectrum);
    EXPECT_EQ(loaded.heads[h].key_mean, saved.heads[h].key_mean);
    EXPECT_EQ(loaded.heads[h].query_energy, saved.heads[h].query_energy);
    EXPECT_EQ(loaded.heads[h].key_variance, saved.heads[h].key_variance);
    EXPECT_EQ(loaded.heads[h].value_variance, saved.heads[h].value_variance);
  }
  EXPECT_EQ(dir.names(), std::vector<std::string>{"p"});
}

TEST(Profile, FindsLayersAndTheirHeads) {
  const Profile p = sample_profile();
  EXPECT_EQ(p.find_layer(0), 0);
  EXPECT_EQ(p.find_layer(1), -1);
  EXPECT_EQ(p.find_layer(2), 1);
  EXPECT_EQ(p.find_layer(3), -1);
  EXPECT_EQ(p.layer_heads(0).size(), 2u);
  ASSERT_EQ(p.layer_heads(1).size(), 1u);
  EXPECT_EQ(&p.layer_heads(1)[0], &p.heads[2]);
}

TEST(Profile, CountsItsPayload) {
  // Floats of a head: two bases of 4 rows, five vectors of d_k, one of d_v.
  const uint64_t wide = 2 * 4 * 16 + 5 * 16 + 32, narrow = 2 * 4 * 24 + 5 * 24 + 16;
  EXPECT_EQ(sample_profile().payload_bytes(), 4 * (2 * wide + narrow));
}

// Version 1 is frozen: these bytes may change only together with Profile::kVersion.
TEST(Profile, WritesTheBytesOfVersion1) {
  const Bytes bytes = sample_bytes();
  EXPECT_EQ(Profile::kVersion, 1u);
  EXPECT_EQ(bytes.size(), 5120u);
  EXPECT_EQ(sha256_hex(bytes), "21edd7383d42898df9d2b339f918c7ecbdd1ab0c8e99fb1631f9de5e5f9e56f2");
}

TEST(Profile, RejectsEveryFlippedBit) {
  Bytes bytes = sample_bytes();
  for (size_t bit = 0; bit < 8 * bytes.size(); ++bit) {
    const auto mask = static_cast<uint8_t>(1u << (bit % 8));
    bytes[bit / 8] ^= mask;
    const auto error = error_of([&] { parse(bytes); });
    bytes[bit / 8] ^= mask;
    ASSERT_TRUE(error.has_value()) << "bit " << bit;
    EXPECT_TRUE(error->code() == ErrorCode::kCorrupt || error->code() == ErrorCode::kUnsupported);
  }
  EXPECT_NO_THROW(parse(bytes));
}

TEST(Profile, RejectsEveryTruncation) {
  const Bytes bytes = sample_bytes();
  for (size_t n = 0; n < bytes.size(); ++n) {
    // A copy of that size, so that a read behind its end is seen by the sanitizer.
    const Bytes cut(bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(n));
    const auto error = error_of([&] { parse(cut); });
    ASSERT_TRUE(error.has_value()) << n << " bytes";
    EXPECT_EQ(error->code(), ErrorCode::kCorrupt);
  }
}

TEST(Profile, RejectsTrailingBytes) {
  for (size_t n : {1u, 31u, 32u, 1000u}) {
    Bytes bytes = sample_bytes();
    bytes.resize(bytes.size() + n, 0);
    EXPECT_ERROR(parse(bytes), ErrorCode::kCorrupt, "its header describes");
    seal(bytes);
    EXPECT_ERROR(parse(bytes), ErrorCode::kCorrupt, "its header describes");
  }
}

TEST(Profile, RejectsOtherFiles) {
  EXPECT_ERROR(parse({'t', 'e', 'x', 't'}), ErrorCode::kCorrupt, "not a GGUF file");
  GgufWriter model;
  model.add_string("general.architecture", "llama");
  EXPECT_ERROR(parse(model.finish()), ErrorCode::kCorrupt, "not a headq profile");
}

TEST(Profile, RejectsAnOlderContainer) {
  Bytes bytes = sample_bytes();
  bytes[4] = 2;  // GGUF version, right behind the magic
  seal(bytes);
  EXPECT_ERROR(parse(bytes), ErrorCode::kCorrupt, "not in GGUF version 3");
}

TEST(Profile, SaysThatAVersionIsNewer) {
  Bytes bytes = sample_bytes();
  *u32_value(bytes, "headq.version") = 2;
  seal(bytes);
  EXPECT_ERROR(parse(bytes), ErrorCode::kUnsupported, "profile version 2, this headq reads 1");
}

// Damage that comes with a right checksum is caught by what the file says about itself.
TEST(Profile, ChecksMoreThanTheChecksum) {
  const auto with = [](const std::string& key, uint8_t value) {
    Bytes bytes = sample_bytes();
    *u32_value(bytes, key) = value;
    seal(bytes);
    return bytes;
  };
  EXPECT_ERROR(parse(with("headq.version", 0)), ErrorCode::kCorrupt, "never existed");
  EXPECT_ERROR(parse(with("headq.n_basis", 0)), ErrorCode::kCorrupt, "n_basis 0");
  EXPECT_ERROR(parse(with("headq.n_basis", 17)), ErrorCode::kCorrupt, "n_basis 17");
  EXPECT_ERROR(parse(with("headq.n_basis", 5)), ErrorCode::kCorrupt, "blk.0.query_basis");

  Bytes renamed = sample_bytes();
  renamed[find(renamed, "blk.2.key_mean")] = 'B';
  seal(renamed);
  EXPECT_ERROR(parse(renamed), ErrorCode::kCorrupt, "no tensor blk.2.key_mean");

  Bytes unlike = sample_bytes();
  unlike[find(unlike, "headq.n_ctx")] = 'x';
  seal(unlike);
  EXPECT_ERROR(parse(unlike), ErrorCode::kCorrupt, "it has no headq.n_ctx");

  Bytes not_finite = sample_bytes();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  std::memcpy(not_finite.data() + not_finite.size() - 64, &nan, sizeof nan);
  seal(not_finite);
  EXPECT_ERROR(parse(not_finite), ErrorCode::kCorrupt, "not finite");
}

TEST(Profile, RejectsPairsThatVersion1DoesNotHave) {
  GgufWriter out;
  out.add_string("general.type", "headq-profile");
  out.add_u32("headq.version", 1);
  out.add_string("headq.checksum", std::string(64, '0'));
  out.add_u32("headq.extra", 1);
  Bytes bytes = out.finish();
  seal(bytes);
  EXPECT_ERROR(parse(bytes), ErrorCode::kCorrupt, "4 metadata pairs, not 15");
}

// One broken law each; save must refuse, and the file must not appear.
TEST(Profile, SavesNothingThatItWouldNotLoad) {
  struct Fault {
    const char* message;
    void (*plant)(Profile&);
  };
  const Fault kFaults[] = {
      {"n_ctx -1", [](Profile& p) { p.n_ctx = -1; }},
      {"n_basis 0", [](Profile& p) { p.n_basis = 0; }},
      {"n_basis 17", [](Profile& p) { p.n_basis = 17; }},
      {"it has no layers", [](Profile& p) { p.layer_ids.clear(); }},
      {"2 layers have 1 shapes", [](Profile& p) { p.shapes.pop_back(); }},
      {"not ascending", [](Profile& p) { std::swap(p.layer_ids[0], p.layer_ids[1]); }},
      {"not ascending", [](Profile& p) { p.layer_ids[1] = 0; }},
      {"layer -1", [](Profile& p) { p.layer_ids[0] = -1; }},
      {"0 KV heads", [](Profile& p) { p.shapes[0].n_head_kv = 0; }},
      {"head_dim 15", [](Profile& p) { p.shapes[0].d_k = 15; }},
      {"head_dim 257", [](Profile& p) { p.shapes[1].d_v = 257; }},
      {"2 heads, the shapes say 3", [](Profile& p) { p.heads.pop_back(); }},
      {"blk.2.key_mean of head 0 has 23 elements, not 24",
       [](Profile& p) { p.heads[2].key_mean.pop_back(); }},
      {"blk.0.value_variance of head 1 has 31 elements, not 32",
       [](Profile& p) { p.heads[1].value_variance.pop_back(); }},
      {"not finite", [](Profile& p) { p.heads[0].key_mean[3] = INFINITY; }},
      {"not finite", [](Profile& p) { p.heads[0].query_basis[3] = NAN; }},
      {"key_variance of head 0 holds a negative number",
       [](Profile& p) { p.heads[0].key_variance[3] = -1e-6f; }},
      {"query_spectrum of head 0 is not in descending order",
       [](Profile& p) { p.heads[0].query_spectrum[3] = 100.0f; }},
      {"query_basis of head 0 is not orthonormal",
       [](Profile& p) { p.heads[0].query_basis[0] += 0.01f; }},
      {"key_basis of head 1 is not orthonormal",
       [](Profile& p) { p.heads[1].key_basis[16] += 0.01f; }},
  };
  for (const Fault& fault : kFaults) {
    const TempDir dir;
    Profile profile = sample_profile();
    fault.plant(profile);
    EXPECT_ERROR(profile.save(dir.file("p")), ErrorCode::kInvalidArgument, fault.message);
    EXPECT_TRUE(dir.names().empty());
  }
}

TEST(Profile, NamesTheFileThatItCannotReadOrWrite) {
  const TempDir dir;
  EXPECT_ERROR(Profile::load(dir.file("none")), ErrorCode::kIo, "none: No such file");
  Bytes bytes = sample_bytes();
  bytes.back() ^= 1;
  put_file(dir.file("bad"), bytes);
  EXPECT_ERROR(Profile::load(dir.file("bad")), ErrorCode::kCorrupt,
               dir.file("bad") + ": it is damaged");
  EXPECT_ERROR(sample_profile().save(dir.file("no/p")), ErrorCode::kIo, "No such file");
}

}  // namespace
}  // namespace headq
