#include "core/sha256.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "core/file.h"

namespace headq {
namespace {

TEST(Sha256, GivesTheDigestsOfTheStandard) {
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(as_bytes("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(as_bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(as_bytes(std::string(1000000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

std::vector<uint8_t> pattern(size_t n) {
  std::vector<uint8_t> out(n);
  for (size_t i = 0; i < n; ++i) out[i] = static_cast<uint8_t>(i * 37 + 11);
  return out;
}

// The padding changes its form at 55, 56, 63 and 64 bytes. The expected value comes from another
// implementation: the digest of the digests of all prefixes.
TEST(Sha256, IsRightForEveryLengthAroundABlock) {
  const std::vector<uint8_t> data = pattern(200);
  std::string digests;
  for (size_t n = 0; n <= data.size(); ++n) digests += sha256_hex({data.data(), n});
  EXPECT_EQ(sha256_hex(as_bytes(digests)),
            "5e326e10d49079c892e1957f9c2b98a13e72711c8fa0de33b2a05abc2030e087");
}

TEST(Sha256, DoesNotDependOnHowTheStreamIsCut) {
  const std::vector<uint8_t> data = pattern(200);
  const std::string whole = sha256_hex(data);
  for (size_t cut = 0; cut <= data.size(); ++cut) {
    Sha256 sha;
    sha.update({data.data(), cut});
    sha.update({data.data() + cut, data.size() - cut});
    EXPECT_EQ(sha.hex(), whole) << cut;
  }
}

}  // namespace
}  // namespace headq
