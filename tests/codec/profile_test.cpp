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
#include "headq/spec.h"

namespace headq {
namespace {

using testing::error_of;
using testing::put_file;
using testing::sample_profile;
using testing::TempDir;
using testing::without_codes;

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

// The data of a tensor.
uint8_t* tensor_data(Bytes& bytes, const std::string& name) {
  const GgufFile file = GgufFile::parse(bytes, "p");
  const GgufTensor* tensor = file.find_tensor(name);
  EXPECT_NE(tensor, nullptr) << name;
  return bytes.data() + (tensor->data.data() - bytes.data());
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
  EXPECT_EQ(loaded.nib, saved.nib);
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
    EXPECT_EQ(loaded.heads[h].key_nib, saved.heads[h].key_nib);
    EXPECT_EQ(loaded.heads[h].value_nib, saved.heads[h].value_nib);
    EXPECT_NE(saved.heads[h].key_nib, saved.heads[h].value_nib);  // a swap would show
  }
  EXPECT_EQ(dir.names(), std::vector<std::string>{"p"});
}

// The sample without the codes that another text of nib does not name.
Profile with_codes(const char* nib, bool keys, bool values) {
  Profile p = sample_profile();
  p.nib = nib;
  for (HeadProfile& head : p.heads) {
    if (!keys) head.key_nib = {};
    if (!values) head.value_nib = {};
  }
  return p;
}

TEST(Profile, HoldsTheCodesOfOneSideOrOfNone) {
  const Profile kCases[] = {with_codes("nib2.5/dense", true, false),
                            with_codes("kivi2+hq4x4/nib0.25@random:7", false, true),
                            without_codes(sample_profile())};
  for (const Profile& saved : kCases) {
    SCOPED_TRACE(saved.nib);
    const Profile loaded = parse(serialize_profile(saved));
    EXPECT_EQ(loaded.nib, saved.nib);
    for (size_t h = 0; h < saved.heads.size(); ++h) {
      EXPECT_EQ(loaded.heads[h].key_nib, saved.heads[h].key_nib);
      EXPECT_EQ(loaded.heads[h].value_nib, saved.heads[h].value_nib);
    }
  }
}

TEST(Profile, SaysWhichCodesItLacks) {
  const Profile p = sample_profile(), none = without_codes(sample_profile());
  for (const char* served :
       {"nib2.5/nib2", "nib2.5-last8/nib2", "nib2.5/dense", "kivi2/nib2", "kivi2+hq4x4/kivi2"}) {
    EXPECT_EQ(p.why_lacks(KvSpec::parse(served)), "") << served;
  }
  for (const char* lacking : {"nib2", "nib2.5/nib2.5", "nib2.5@random/nib2", "kivi2/nib1"}) {
    const std::string why = p.why_lacks(KvSpec::parse(lacking));
    const std::string wanted = KvSpec::parse(lacking).to_string();
    EXPECT_EQ(why, "the profile holds nib2.5/nib2, not " + wanted + ": headq calibrate --kv " +
                       wanted + " makes one that does");
  }
  EXPECT_EQ(none.why_lacks(KvSpec::parse("kivi2+hq4x4")), "");
  EXPECT_NE(none.why_lacks(KvSpec::parse("nib2")).find("holds no codes of nib"), std::string::npos);
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
  const Profile p = without_codes(sample_profile());
  EXPECT_EQ(p.payload_bytes(), 4 * (2 * wide + narrow));
  // A code of n nibbles and coordinates: mean, two transforms, reach, 2 n - 1 terms, two errors.
  const auto code = [](uint64_t d, uint64_t n) {
    return 4 * (d + 2 * n * d + 2 * n + (2 * n - 1) + 2) + 16 * (2 * n - 1);
  };
  const uint64_t codes =
      code(16, 3) + code(32, 2) + code(16, 4) + code(32, 3) + code(24, 6) + code(16, 5);
  EXPECT_EQ(sample_profile().payload_bytes(), p.payload_bytes() + codes);
}

// Version 1 is frozen: these bytes may change only together with Profile::kVersion.
TEST(Profile, WritesTheBytesOfVersion1) {
  const Bytes bytes = sample_bytes();
  EXPECT_EQ(Profile::kVersion, 1u);
  EXPECT_EQ(bytes.size(), 13024u);
  EXPECT_EQ(sha256_hex(bytes), "99e58854b6b1656ceff2c1912b02dd3a10826ae6e3f88cd5bdd1db4ef8043a95");
}

// All bits of pairs and tensor descriptions; of the data, which only the checksum guards, each
// ninth, so that every position in a byte has its turn.
TEST(Profile, RejectsFlippedBits) {
  Bytes bytes = sample_bytes();
  const size_t data = static_cast<size_t>(
      GgufFile::parse(bytes, "p").find_tensor("blk.0.query_basis")->data.data() - bytes.data());
  ASSERT_LT(data, bytes.size());
  for (size_t bit = 0; bit < 8 * bytes.size(); bit += bit < 8 * data ? 1 : 9) {
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
  std::memcpy(tensor_data(not_finite, "blk.2.value_variance"), &nan, sizeof nan);
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
  EXPECT_ERROR(parse(bytes), ErrorCode::kCorrupt, "4 metadata pairs, not 16");
}

// The same for what belongs to codes of nib.
TEST(Profile, ChecksTheCodesOfNib) {
  const auto planted = [](const auto& plant) {
    Bytes bytes = sample_bytes();
    plant(bytes);
    seal(bytes);
    return bytes;
  };
  const auto i32 = [&](const char* tensor, size_t index, int32_t value) {
    return planted([&](Bytes& bytes) {
      std::memcpy(tensor_data(bytes, tensor) + 4 * index, &value, sizeof value);
    });
  };
  const auto text = [&](const std::string& from, const std::string& to) {
    return planted([&](Bytes& bytes) {
      std::copy(to.begin(), to.end(), bytes.begin() + static_cast<ptrdiff_t>(find(bytes, from)));
    });
  };
  for (const char* name :
       {"sizes", "mean", "analysis", "synthesis", "reach", "scale", "codebook", "errors"}) {
    const std::string tensor = std::string("blk.2.key_nib.") + name;
    EXPECT_ERROR(parse(text(tensor, "B")), ErrorCode::kCorrupt, "it has no tensor " + tensor);
    // Behind the name: number of dimensions, two sizes of 8 bytes, type.
    const auto describe = [&](size_t offset, uint8_t value) {
      return planted(
          [&](Bytes& bytes) { bytes[find(bytes, tensor) + tensor.size() + offset] = value; });
    };
    const uint8_t columns = sample_bytes()[find(sample_bytes(), tensor) + tensor.size() + 4];
    EXPECT_ERROR(parse(describe(4, static_cast<uint8_t>(columns - 1))), ErrorCode::kCorrupt,
                 "blk.2.key_nib");
  }
  // sizes: [heads][nibbles, coordinates]; 3 and 4 nibbles in the heads of layer 0.
  EXPECT_ERROR(parse(i32("blk.0.key_nib.sizes", 0, 0)), ErrorCode::kCorrupt,
               "blk.0.key_nib.sizes of head 0 are out of range");
  EXPECT_ERROR(parse(i32("blk.0.key_nib.sizes", 2, 513)), ErrorCode::kCorrupt,
               "blk.0.key_nib.sizes of head 1 are out of range");
  EXPECT_ERROR(parse(i32("blk.0.key_nib.sizes", 3, 17)), ErrorCode::kCorrupt,
               "blk.0.key_nib.sizes of head 1 are out of range");
  EXPECT_ERROR(parse(i32("blk.0.key_nib.sizes", 1, -1)), ErrorCode::kCorrupt, "out of range");
  EXPECT_ERROR(parse(i32("blk.0.key_nib.sizes", 0, 4)), ErrorCode::kCorrupt,
               "blk.0.key_nib.reach is not of its layer's shape");
  EXPECT_ERROR(parse(i32("blk.0.key_nib.sizes", 1, 4)), ErrorCode::kCorrupt,
               "blk.0.key_nib.analysis is not of its layer's shape");
  // reach of head 0: (0, 2), (1, 3), (2, 3).
  const struct {
    size_t index;
    int32_t value;
  } kNoChains[] = {{0, -1}, {0, 2}, {1, 4}, {1, 0}, {4, 1}, {4, 3}};
  for (const auto& [index, value] : kNoChains) {
    EXPECT_ERROR(parse(i32("blk.0.key_nib.reach", index, value)), ErrorCode::kCorrupt,
                 "blk.0.key_nib.reach of head 0 is no chain");
  }
  // A chain still, but with another number of terms.
  EXPECT_ERROR(parse(i32("blk.0.key_nib.reach", 1, 1)), ErrorCode::kCorrupt,
               "blk.0.key_nib.scale is not of its layer's shape");
  for (const char* name : {"mean", "analysis", "synthesis", "scale"}) {
    const std::string tensor = std::string("blk.2.value_nib.") + name;
    EXPECT_ERROR(parse(i32(tensor.c_str(), 1, 0x7f800000)), ErrorCode::kCorrupt,
                 "blk.2.value_nib of head 0 holds a number that is not finite");
  }
  // errors: [heads][error, power].
  const int32_t kTooLarge = 0x7f000000, kNegative = static_cast<int32_t>(0xbf800000u);
  EXPECT_ERROR(parse(i32("blk.2.value_nib.errors", 0, kTooLarge)), ErrorCode::kCorrupt,
               "blk.2.value_nib of head 0 expects an error of");
  EXPECT_ERROR(parse(i32("blk.2.value_nib.errors", 0, kNegative)), ErrorCode::kCorrupt,
               "an error of -1");
  EXPECT_ERROR(parse(i32("blk.2.value_nib.errors", 1, 0x7f800000)), ErrorCode::kCorrupt, "of inf");
  EXPECT_ERROR(parse(text("nib2.5/nib2", "nib2.0/nib2")), ErrorCode::kCorrupt,
               "codecs 'nib2.0/nib2' are not what a profile holds");
  EXPECT_ERROR(parse(text("nib2.5/nib2", "nib2.5/nibs")), ErrorCode::kCorrupt, "nibs");
  // Codes that the text does not name are tensors too many, and the other way round.
  EXPECT_ERROR(parse(text("nib2.5/nib2", "dense/dense")), ErrorCode::kCorrupt,
               "tensors for 2 layers");
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
      {"codecs 'nib2.50/nib2' are not", [](Profile& p) { p.nib = "nib2.50/nib2"; }},
      {"codecs 'nib2.5' are not", [](Profile& p) { p.nib = "nib2.5"; }},
      {"codecs 'nib2.5-last8/nib2' are not", [](Profile& p) { p.nib = "nib2.5-last8/nib2"; }},
      {"rate of nib", [](Profile& p) { p.nib = "nib9/nib2"; }},
      {"blk.0.key_nib of head 0 is there without its codec",
       [](Profile& p) { p.nib = "dense/nib2"; }},
      {"blk.0.value_nib of head 0 is there without its codec",
       [](Profile& p) { p.nib = "nib2.5/kivi2"; }},
      {"is there without its codec", [](Profile& p) { p.nib = ""; }},
      {"blk.0.key_nib of head 1 does not fit head_dim 16",
       [](Profile& p) { p.heads[1].key_nib = {}; }},
      {"blk.2.value_nib of head 0 does not fit head_dim 16",
       [](Profile& p) { p.heads[2].value_nib.mean.pop_back(); }},
      {"does not fit", [](Profile& p) { p.heads[0].key_nib.synthesis.pop_back(); }},
      {"blk.0.key_nib of head 0 is no chain", [](Profile& p) { p.heads[0].key_nib.reach[0] = -1; }},
      {"is no chain", [](Profile& p) { p.heads[0].key_nib.reach[4] = 1; }},
      {"is no chain", [](Profile& p) { p.heads[0].key_nib.reach.push_back(2); }},
      {"is no chain", [](Profile& p) { p.heads[0].key_nib.reach.clear(); }},
      {"blk.0.key_nib of head 0 has 4 scales and 80 table entries for 5 terms",
       [](Profile& p) { p.heads[0].key_nib.scale.pop_back(); }},
      {"has 5 scales and 79 table entries for 5 terms",
       [](Profile& p) { p.heads[0].key_nib.codebook.pop_back(); }},
      {"value_nib of head 1 holds a number that is not finite",
       [](Profile& p) { p.heads[1].value_nib.scale[0] = NAN; }},
      {"not finite", [](Profile& p) { p.heads[0].key_nib.synthesis[3] = -INFINITY; }},
      {"key_nib of head 0 expects an error of nan",
       [](Profile& p) { p.heads[0].key_nib.error = NAN; }},
      {"expects an error of", [](Profile& p) { p.heads[0].key_nib.power = 0.0f; }},
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
