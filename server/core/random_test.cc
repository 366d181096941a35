#include "server/core/random.h"

#include <set>

#include "gtest/gtest.h"

namespace kvtier {
namespace {

TEST(RandomTest, HexOfTheLengthAskedFor) {
  EXPECT_EQ(RandomHex(0), "");
  EXPECT_EQ(RandomHex(-1), "");
  // getrandom gives 256 bytes without interruption, and may give less of more.
  for (const int bytes : {1, 16, 255, 257, 5000}) {
    const std::string hex = RandomHex(bytes);
    EXPECT_EQ(hex.size(), 2u * bytes);
    EXPECT_EQ(hex.find_first_not_of("0123456789abcdef"), std::string::npos) << hex;
  }
}

TEST(RandomTest, NeverTheSame) {
  std::set<std::string> seen;
  for (int i = 0; i < 1000; ++i) EXPECT_TRUE(seen.insert(RandomHex(16)).second);
}

TEST(RandomTest, EveryPartIsFilled) {
  // All-zero 8 bytes anywhere have a chance of 2^-64 each.
  const std::string hex = RandomHex(4096);
  EXPECT_EQ(hex.find(std::string(16, '0')), std::string::npos);
}

}  // namespace
}  // namespace kvtier
