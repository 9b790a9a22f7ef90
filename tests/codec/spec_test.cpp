#include "headq/spec.h"

#include <gtest/gtest.h>

#include "core/error_of.h"
#include "headq/error.h"

namespace headq {
namespace {

TEST(Spec, ParseAndToStringAreInverse) {
  for (const char* text :
       {"dense", "kivi2", "kivi3", "kivi4", "kivi8", "token2", "token4", "token2h", "token4c",
        "token4hc", "kivi2w9", "kivi3w128", "kivi4w1", "kivi2w9+hq4x4", "kivi2+hq4x4", "kivi2-hq4x4",
        "kivi2+hq4x4@key", "kivi2+hq16x4@random",
        "kivi2+a2", "kivi2+a2@random", "kivi2+a2@random:7", "kivi2-hq1x4@random:7", "token2hc+hq8x4", "nib2", "nib2.5", "nib0.25", "nib8", "nib2@random",
        "nib2@random:7", "nib2-last8", "nib1.75@random:7-last512"}) {
    EXPECT_EQ(CodecSpec::parse(text).to_string(), text);
  }
}

TEST(Spec, DefaultsMayBeSpelledOut) {
  EXPECT_EQ(CodecSpec::parse("kivi2+hq4x4@query"), CodecSpec::parse("kivi2+hq4x4"));
  EXPECT_EQ(CodecSpec::parse("kivi2+hq4x4@random:1"), CodecSpec::parse("kivi2+hq4x4@random"));
  EXPECT_EQ(CodecSpec::parse("nib2.50"), CodecSpec::parse("nib2.5"));
  EXPECT_EQ(CodecSpec::parse("kivi2+a2@random:1"), CodecSpec::parse("kivi2+a2@random"));
  EXPECT_EQ(CodecSpec::parse("nib2@random:1"), CodecSpec::parse("nib2@random"));
}

TEST(Spec, NibHasARateAndControls) {
  const CodecSpec spec = CodecSpec::parse("nib2.25@random:7-last8");
  EXPECT_TRUE(spec.is_nib());
  EXPECT_EQ(spec.rate, 2.25);
  EXPECT_EQ(spec.side_basis, SideBasis::kRandom);
  EXPECT_EQ(spec.seed, 7u);
  EXPECT_EQ(spec.wrong_sign, 8);
  EXPECT_EQ(CodecSpec::parse("nib2").wrong_sign, 0);
  EXPECT_FALSE(CodecSpec::parse("kivi2").is_nib());
}

TEST(Spec, OneSpecStandsForBothSidesWithoutWhatValuesCannotHave) {
  EXPECT_EQ(KvSpec::parse("kivi2+hq4x4"), KvSpec::parse("kivi2+hq4x4/kivi2"));
  EXPECT_EQ(KvSpec::parse("token4hc"), KvSpec::parse("token4hc/token4h"));
  EXPECT_EQ(KvSpec::parse("kivi2+a2").to_string(), "kivi2/kivi2+a2");
  EXPECT_EQ(KvSpec::parse("kivi2+a2@random:7").to_string(), "kivi2/kivi2+a2@random:7");
  EXPECT_EQ(KvSpec::parse("kivi3/dense").to_string(), "kivi3/dense");
  EXPECT_EQ(KvSpec::parse("nib2").to_string(), "nib2/nib2");
  EXPECT_EQ(KvSpec::parse("nib2.25/nib1.75").to_string(), "nib2.25/nib1.75");
  EXPECT_EQ(KvSpec::parse("nib2@random:7-last8").to_string(), "nib2@random:7-last8/nib2@random:7");
}

TEST(Spec, BadTextIsRefusedWithTheTextAndTheReason) {
  const struct {
    const char* text;
    const char* reason;
  } cases[] = {
      {"", "unknown codec"},
      {"kivi", "2 to 8"},
      {"kivi5", "2, 3, 4 or 8"},
      {"kivi16", "2 to 8"},
      {"kivi2w0", "1 to 128"},
      {"kivi2w129", "1 to 128"},
      {"kivi8w1", "unexpected 'w1'"},
      {"token2w1", "unexpected 'w1'"},
      {"token3", "2 or 4"},
      {"dense+hq4x4", "no residual"},
      {"kivi2+hq0x4", "1 to 16"},
      {"kivi2+hq17x4", "1 to 16"},
      {"kivi2+hq4x2", "4 bits"},
      {"kivi2+hq4x4@pca", "unexpected '@pca'"},
      {"kivi2+hq4x4@random:", "seed"},
      {"kivi2+a2@paid", "unexpected '@paid'"},
      {"kivi2+a2@random:", "seed"},
      {"kivi4+a2", "values of kivi2 only"},
      {"token2+a2", "values of kivi2 only"},
      {"dense+a2", "values of kivi2 only"},
      {"kivi2w3+a2", "values of kivi2 only"},
      {"kivi2+a2+hq4x4", "unexpected '+hq4x4'"},
      {"kivi2+hq4x4+a2", "unexpected '+a2'"},
      {"kivi2 ", "unexpected"},
      {"kivi2+hq4x4x", "unexpected 'x'"},
      {"kivi2h", "unexpected 'h'"},
      {"Kivi2", "unknown codec"},
      {"nib", "rate of nib must be a number from 0.25 to 8"},
      {"nib0.1", "from 0.25 to 8"},
      {"nib9", "from 0.25 to 8"},
      {"nib-2", "from 0.25 to 8"},
      {"nibnan", "from 0.25 to 8"},
      {"nibinf", "from 0.25 to 8"},
      {"nib2e0", "unexpected 'e0'"},
      {"nib2x", "unexpected 'x'"},
      {"nib2@key", "unexpected '@key'"},
      {"nib2@random:", "seed"},
      {"nib2+hq4x4", "unexpected '+hq4x4'"},
      {"nib2-last", "1 to 512"},
      {"nib2-last0", "1 to 512"},
      {"nib2-last513", "1 to 512"},
      {"nib2-last8@random", "unexpected '@random'"},
  };
  for (const auto& c : cases) {
    SCOPED_TRACE(c.text);
    EXPECT_ERROR(CodecSpec::parse(c.text), ErrorCode::kInvalidArgument, c.reason);
    EXPECT_ERROR(CodecSpec::parse(c.text), ErrorCode::kInvalidArgument,
                 std::string("'") + c.text + "'");
  }
}

TEST(Spec, ValuesTakeNoSideCodeNoCentringAndNoWrongSign) {
  EXPECT_THROW(KvSpec::parse("kivi2/kivi2+hq4x4"), Error);
  EXPECT_THROW(KvSpec::parse("kivi2/token4c"), Error);
  EXPECT_ERROR(KvSpec::parse("kivi2/kivi2w9"), ErrorCode::kInvalidArgument,
               "'kivi2w9': wide channels ('w') are for keys only");
  EXPECT_EQ(KvSpec::parse("kivi2w9").to_string(), "kivi2w9/kivi2");
  EXPECT_ERROR(KvSpec::parse("nib2/nib2-last8"), ErrorCode::kInvalidArgument,
               "'nib2-last8': the control '-last' is for keys only");
  EXPECT_THROW(KvSpec::parse("kivi2/kivi2/kivi2"), Error);
}

TEST(Spec, KeysAreNotRefined) {
  EXPECT_ERROR(KvSpec::parse("kivi2+a2/kivi2"), ErrorCode::kInvalidArgument,
               "'kivi2+a2': '+a2' is for values only");
  EXPECT_EQ(KvSpec::parse("kivi4+hq4x4/kivi2+a2").to_string(), "kivi4+hq4x4/kivi2+a2");
}

TEST(Spec, ProfilesAreNeededForBasesMeansAndSplits) {
  for (const char* text : {"kivi2+hq4x4", "kivi2+hq4x4@key", "token4c", "kivi3", "kivi2w1", "nib2",
                           "nib2@random"}) {
    EXPECT_TRUE(CodecSpec::parse(text).needs_profile()) << text;
  }
  for (const char* text : {"dense", "kivi2", "kivi8", "token2h", "kivi2+a2", "kivi2+hq4x4@random"}) {
    EXPECT_FALSE(CodecSpec::parse(text).needs_profile()) << text;
  }
}

TEST(Spec, LayersOverrideAndMayNotRepeat) {
  CacheSpec spec;
  spec.kv = KvSpec::parse("kivi2");
  spec.parse_layers("0:kivi4/kivi8,13:dense");
  EXPECT_EQ(spec.layer(0).to_string(), "kivi4/kivi8");
  EXPECT_EQ(spec.layer(13).to_string(), "dense/dense");
  EXPECT_EQ(spec.layer(1).to_string(), "kivi2/kivi2");
  for (const char* bad :
       {"0", "0:", ":kivi2", "-1:kivi2", "x:kivi2", "0:kivi2", "1:kivi2,1:kivi2"}) {
    EXPECT_THROW(spec.parse_layers(bad), Error) << bad;
  }
}

TEST(Spec, WindowAndSinksHaveLimits) {
  CacheSpec spec;
  EXPECT_NO_THROW(spec.validate());
  spec.window = 4097;
  EXPECT_THROW(spec.validate(), Error);
  spec.window = 0;
  spec.sinks = -1;
  EXPECT_THROW(spec.validate(), Error);
}

}  // namespace
}  // namespace headq
