#include "server/host_pool/host_pool_space.h"

#include <algorithm>
#include <map>
#include <random>
#include <vector>

#include "gtest/gtest.h"

namespace kvtier {
namespace {

TEST(PoolSpaceTest, BestFitThenLowestAddress) {
  PoolSpace space(100);
  EXPECT_EQ(space.Take(10), 0);
  EXPECT_EQ(space.Take(20), 10);
  EXPECT_EQ(space.Take(10), 30);
  EXPECT_EQ(space.Take(20), 40);
  EXPECT_EQ(space.Take(10), 60);  // 70..100 is left
  space.GiveBack(10, 20);
  space.GiveBack(40, 20);
  EXPECT_EQ(space.Take(15), 10) << "two holes of 20: the lower one, and not the 30 at the end";
  EXPECT_EQ(space.Take(5), 25) << "the rest of it fits exactly";
  EXPECT_EQ(space.Take(30), 70);
  EXPECT_EQ(space.Take(21), std::nullopt);
  EXPECT_EQ(space.Take(20), 40);
  EXPECT_EQ(space.free_bytes(), 0);
  EXPECT_EQ(space.largest_free_bytes(), 0);
}

TEST(PoolSpaceTest, NeighboursBecomeOne) {
  PoolSpace space(40);
  for (int64_t offset = 0; offset < 40; offset += 10) EXPECT_EQ(space.Take(10), offset);
  space.GiveBack(0, 10);
  space.GiveBack(20, 10);
  EXPECT_EQ(space.largest_free_bytes(), 10);
  EXPECT_EQ(space.free_bytes(), 20);
  space.GiveBack(10, 10);  // with both sides
  EXPECT_EQ(space.largest_free_bytes(), 30);
  space.GiveBack(30, 10);
  EXPECT_EQ(space.Take(40), 0);
}

TEST(PoolSpaceTest, PristineIsWhatWasNeverLent) {
  PoolSpace space(100);
  EXPECT_EQ(space.pristine_from(), 0);
  space.Take(30);
  space.Take(20);
  EXPECT_EQ(space.pristine_from(), 50);
  space.GiveBack(30, 20);
  EXPECT_EQ(space.pristine_from(), 50);
  space.Take(60);
  EXPECT_EQ(space.pristine_from(), 90);
}

TEST(PoolSpaceTest, RandomUseNeverOverlapsAndComesBackWhole) {
  std::mt19937_64 random(1);
  PoolSpace space(1000);
  std::map<int64_t, int64_t> lent;
  for (int i = 0; i < 20000; ++i) {
    if (random() % 2 == 0) {
      const auto bytes = static_cast<int64_t>(1 + random() % 200);
      const int64_t largest = space.largest_free_bytes();
      const std::optional<int64_t> offset = space.Take(bytes);
      ASSERT_EQ(offset.has_value(), bytes <= largest);
      if (!offset) continue;
      const auto next = lent.lower_bound(*offset);
      if (next != lent.end()) {
        ASSERT_LE(*offset + bytes, next->first);
      }
      if (next != lent.begin()) {
        ASSERT_LE(std::prev(next)->first + std::prev(next)->second, *offset);
      }
      lent[*offset] = bytes;
    } else if (!lent.empty()) {
      const auto part = std::next(lent.begin(), static_cast<int64_t>(random() % lent.size()));
      space.GiveBack(part->first, part->second);
      lent.erase(part);
    }
    int64_t used = 0;
    for (const auto& [offset, bytes] : lent) used += bytes;
    ASSERT_EQ(space.used_bytes(), used);
  }
  for (const auto& [offset, bytes] : lent) space.GiveBack(offset, bytes);
  EXPECT_EQ(space.largest_free_bytes(), 1000);
}

}  // namespace
}  // namespace kvtier
