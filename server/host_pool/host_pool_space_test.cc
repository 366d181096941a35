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

TEST(PoolSpaceTest, CleanIsWhatNobodyHadAndWhatWasWipedSince) {
  using Ranges = std::vector<PoolSpace::Range>;
  PoolSpace space(100);
  EXPECT_EQ(space.DirtyIn(0, 100), Ranges());
  space.MarkDirty(10, 20);
  space.MarkDirty(50, 20);
  EXPECT_EQ(space.DirtyIn(0, 100), (Ranges{{10, 20}, {50, 20}}));
  EXPECT_EQ(space.DirtyIn(15, 40), (Ranges{{15, 15}, {50, 5}}));
  EXPECT_EQ(space.DirtyIn(30, 20), Ranges());
  space.MarkClean(15, 5);
  EXPECT_EQ(space.DirtyIn(0, 50), (Ranges{{10, 5}, {20, 10}}));
  space.MarkDirty(0, 60);
  EXPECT_EQ(space.DirtyIn(0, 100), (Ranges{{0, 70}}));
  EXPECT_EQ(space.Take(80), 0);
  space.GiveBack(0, 80);
  EXPECT_EQ(space.DirtyIn(0, 100), (Ranges{{0, 70}})) << "lending alone changes nothing";
}

TEST(PoolSpaceTest, MarksAreThoseOfEachByte) {
  std::mt19937_64 random(2);
  PoolSpace space(200);
  std::vector<bool> expected(200, false);
  for (int i = 0; i < 20000; ++i) {
    const auto offset = static_cast<int64_t>(random() % 200);
    const auto bytes = static_cast<int64_t>(1 + random() % (200 - offset));
    const bool dirty = random() % 2 == 0;
    if (dirty) {
      space.MarkDirty(offset, bytes);
    } else {
      space.MarkClean(offset, bytes);
    }
    std::fill_n(expected.begin() + offset, bytes, dirty);
    std::vector<bool> found(200, false);
    int64_t last_end = -1;
    for (const PoolSpace::Range& range : space.DirtyIn(0, 200)) {
      ASSERT_GT(range.offset_bytes, last_end) << "neighbours are one";
      last_end = range.offset_bytes + range.bytes;
      std::fill_n(found.begin() + range.offset_bytes, range.bytes, true);
    }
    ASSERT_EQ(found, expected);
  }
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
