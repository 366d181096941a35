#include "client/demo/content.h"

#include <cstdint>
#include <vector>

#include "gtest/gtest.h"

namespace kvtier::demo {
namespace {

TEST(Content, ARowIsItself) {
  std::vector<uint8_t> row(656);
  FillRow(RowSeed(TenantOf("cache", "r.0"), 7, 1, 3), row);
  EXPECT_TRUE(RowIs(RowSeed(TenantOf("cache", "r.0"), 7, 1, 3), row));
}

TEST(Content, EveryByteCounts) {
  std::vector<uint8_t> row(656);
  const uint64_t seed = RowSeed(TenantOf("cache", "r.0"), 7, 1, 3);
  FillRow(seed, row);
  for (uint8_t& byte : row) {
    byte ^= 0x10;
    EXPECT_FALSE(RowIs(seed, row));
    byte ^= 0x10;
  }
}

TEST(Content, NoOtherRowPasses) {
  std::vector<uint8_t> row(656);
  FillRow(RowSeed(TenantOf("cache", "r.0"), 7, 1, 3), row);
  EXPECT_FALSE(RowIs(RowSeed(TenantOf("cache", "r.1"), 7, 1, 3), row));
  EXPECT_FALSE(RowIs(RowSeed(TenantOf("cach", "er.0"), 7, 1, 3), row));
  EXPECT_FALSE(RowIs(RowSeed(TenantOf("cache", "r.0"), 8, 1, 3), row));
  EXPECT_FALSE(RowIs(RowSeed(TenantOf("cache", "r.0"), 7, 2, 3), row));
  EXPECT_FALSE(RowIs(RowSeed(TenantOf("cache", "r.0"), 7, 1, 4), row));
  EXPECT_FALSE(RowIs(RowSeed(TenantOf("cache", "r.0"), 3, 1, 7), row));
  EXPECT_FALSE(RowIs(RowSeed(TenantOf("cache", "r.0"), 7, 1, 3), std::vector<uint8_t>(656)));
}

}  // namespace
}  // namespace kvtier::demo
