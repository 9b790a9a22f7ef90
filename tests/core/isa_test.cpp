#include "core/isa.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "core/error_of.h"

namespace headq {
namespace {

TEST(Isa, NoRequestTakesTheBest) { EXPECT_EQ(select_isa(""), available_isas().back()); }

TEST(Isa, EveryAvailableLevelCanBeForced) {
  for (Isa isa : available_isas()) EXPECT_EQ(select_isa(std::string(isa_name(isa))), isa);
}

TEST(Isa, UnknownAndImpossibleLevelsAreErrors) {
  EXPECT_ERROR(select_isa("avx9"), ErrorCode::kInvalidArgument, "avx9");
  EXPECT_ERROR(select_isa("AVX2"), ErrorCode::kInvalidArgument, "AVX2");
  for (Isa isa : {Isa::kAvx2, Isa::kAvx512, Isa::kNeon, Isa::kDotprod}) {
    const std::vector<Isa> have = available_isas();
    if (std::find(have.begin(), have.end(), isa) != have.end()) continue;
    EXPECT_ERROR(select_isa(std::string(isa_name(isa))), ErrorCode::kUnsupported, "does not have");
  }
}

}  // namespace
}  // namespace headq
