#include "server/hot_tier/region_allocator.h"

#include <random>
#include <set>

#include "gtest/gtest.h"

namespace kvtier {
namespace {

TEST(RegionAllocatorTest, LowestFirst) {
  RegionAllocator regions(3);
  EXPECT_EQ(regions.Take(), 0);
  EXPECT_EQ(regions.Take(), 1);
  regions.Return(0);
  EXPECT_EQ(regions.Take(), 0);
  EXPECT_EQ(regions.Take(), 2);
  EXPECT_EQ(regions.Take(), std::nullopt);
  EXPECT_EQ(regions.free_count(), 0);
}

TEST(RegionAllocatorTest, NeverTwiceAtATime) {
  RegionAllocator regions(7);
  std::set<int32_t> taken;
  std::mt19937 random(1);
  for (int step = 0; step < 10000; ++step) {
    if (random() % 2 == 0) {
      const auto region = regions.Take();
      ASSERT_EQ(region.has_value(), taken.size() < 7);
      if (region.has_value()) {
        ASSERT_TRUE(taken.insert(*region).second);
      }
    } else if (!taken.empty()) {
      const auto which = std::next(taken.begin(), random() % taken.size());
      regions.Return(*which);
      taken.erase(which);
    }
    ASSERT_EQ(regions.free_count() + taken.size(), 7u);
    ASSERT_EQ(regions.end(), taken.empty() ? 0 : *taken.rbegin() + 1);
  }
}

}  // namespace
}  // namespace kvtier
