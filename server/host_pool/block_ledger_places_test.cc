#include "server/host_pool/block_ledger_places.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/host_pool/testing/churn.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

std::vector<int32_t> Range(int32_t begin, int32_t end) {
  std::vector<int32_t> range(end - begin);
  std::iota(range.begin(), range.end(), begin);
  return range;
}

std::set<int32_t> NeighbourhoodsOf(const std::vector<int32_t>& blocks, int32_t size) {
  std::set<int32_t> ids;
  for (const int32_t block : blocks) ids.insert(block / size);
  return ids;
}

TEST(BlockPlacesTest, WhoGrowsInTurnGrowsInPlace) {
  BlockPlaces places(64, 8);
  std::map<int64_t, std::vector<int32_t>> blocks;
  for (int i = 0; i < 16; ++i) {
    for (int64_t holder = 0; holder < 4; ++holder) {
      std::vector<int32_t>& own = blocks[holder];
      const int32_t next_to = own.empty() ? -1 : own.back() + 1;
      const std::vector<int32_t> taken = places.Take(holder, 1, next_to, 0);
      ASSERT_EQ(taken.size(), 1u);
      own.push_back(taken[0]);
    }
  }
  for (const auto& [holder, own] : blocks) {
    EXPECT_EQ(NeighbourhoodsOf(own, 8).size(), 2u) << holder;
  }
  EXPECT_EQ(places.free_count(), 0);
  for (int64_t holder = 0; holder < 4; ++holder) EXPECT_EQ(places.ClaimsOf(holder), 0);
}

TEST(BlockPlacesTest, WhatIsTakenAtOnceLiesInARow) {
  BlockPlaces places(100, 8);
  EXPECT_EQ(places.Take(1, 20, -1, 0), Range(0, 20));
  EXPECT_EQ(places.ClaimsOf(1), 1);
  EXPECT_EQ(places.Take(2, 20, -1, 0), Range(24, 44)) << "20..23 are claimed";
  EXPECT_EQ(places.Take(1, 6, 20, 0), (std::vector<int32_t>{20, 21, 22, 23, 48, 49}));
  // The smallest row of whole ones that is enough: 0..4 of 12 are free again, 7..11 are 5.
  places.Put(Range(0, 24));
  EXPECT_EQ(places.Take(3, 24, -1, 0), Range(0, 24));
}

TEST(BlockPlacesTest, RoomIsClaimed) {
  BlockPlaces places(64, 8);
  EXPECT_THAT(places.Take(1, 2, -1, 20), ElementsAre(0, 1));
  EXPECT_EQ(places.ClaimsOf(1), 3);
  EXPECT_THAT(places.Take(2, 2, -1, 0), ElementsAre(24, 25));
  EXPECT_EQ(places.Take(1, 20, 2, 0), Range(2, 22));
  places.Forget(1);
  EXPECT_EQ(places.ClaimsOf(1), 0);
}

TEST(BlockPlacesTest, NobodyGrowsIntoWhatAnotherClaims) {
  BlockPlaces places(24, 8);
  EXPECT_EQ(places.Take(1, 8, -1, 0), Range(0, 8));
  EXPECT_THAT(places.Take(2, 1, -1, 0), ElementsAre(8));
  places.Put({8});
  EXPECT_THAT(places.Take(1, 1, 8, 0), ElementsAre(16));
  places.Forget(2);
  EXPECT_THAT(places.Take(1, 1, 8, 0), ElementsAre(8));
}

TEST(BlockPlacesTest, ForgottenClaimsAreForOthers) {
  BlockPlaces places(16, 8);
  EXPECT_THAT(places.Take(1, 1, -1, 0), ElementsAre(0));
  EXPECT_THAT(places.Take(2, 1, -1, 0), ElementsAre(8));
  places.Put({0});
  EXPECT_EQ(places.ClaimsOf(1), 1) << "who frees a block may go on there";
  places.Forget(1);
  EXPECT_EQ(places.Take(3, 8, -1, 0), Range(0, 8));
}

TEST(BlockPlacesTest, ClaimsNeverMakeAnAllocationFail) {
  BlockPlaces places(16, 8);
  EXPECT_THAT(places.Take(1, 1, -1, 0), ElementsAre(0));
  EXPECT_THAT(places.Take(2, 2, -1, 0), ElementsAre(8, 9));
  EXPECT_THAT(places.Take(3, 1, -1, 0), ElementsAre(4)) << "the middle of the longest piece";
  EXPECT_THAT(places.Take(1, 1, 1, 0), ElementsAre(1)) << "it has room to grow";
  std::vector<int32_t> rest = places.Take(4, 11, -1, 0);
  std::sort(rest.begin(), rest.end());
  EXPECT_THAT(rest, ElementsAre(2, 3, 5, 6, 7, 10, 11, 12, 13, 14, 15));
  EXPECT_EQ(places.free_count(), 0);
}

TEST(BlockPlacesTest, WhoGrowsNoMoreLosesItsClaim) {
  BlockPlaces places(24, 8);
  EXPECT_THAT(places.Take(1, 1, -1, 0), ElementsAre(0));
  EXPECT_THAT(places.Take(2, 1, -1, 0), ElementsAre(8));
  int32_t last = 15;
  for (int i = 0; i < 8; ++i) last = places.Take(3, 1, last + 1, 0).front();
  EXPECT_EQ(last, 23);
  EXPECT_EQ(places.Take(2, 1, 9, 0).front(), 9);
  EXPECT_EQ(places.Take(2, 1, 10, 0).front(), 10);
  // Nothing is whole any more. Holder 1 has stood still for ten calls, 2 claims something still.
  EXPECT_EQ(places.Take(4, 3, -1, 0), Range(1, 4));
  EXPECT_EQ(places.ClaimsOf(1), 0);
  EXPECT_EQ(places.ClaimsOf(2), 1);
  EXPECT_EQ(places.ClaimsOf(4), 1);
}

TEST(BlockPlacesTest, AShortLastNeighbourhoodCountsAsWhole) {
  BlockPlaces places(10, 8);
  EXPECT_EQ(places.Take(1, 8, -1, 0), Range(0, 8));
  EXPECT_THAT(places.Take(2, 1, -1, 0), ElementsAre(8));
  places.Put({8});
  places.Forget(2);
  EXPECT_THAT(places.Take(3, 2, -1, 0), ElementsAre(8, 9));
  EXPECT_THAT(BlockPlaces(0, 8).Take(1, 0, -1, 0), IsEmpty());
}

// All goes back to one piece, whatever was claimed.
TEST(BlockPlacesTest, EveryBlockIsOneHoldersUntilItIsPutBack) {
  for (const int32_t size : {1, 3, 16, 100}) {
    std::mt19937 random(7);
    BlockPlaces places(97, size);
    std::vector<int64_t> owner(97, -1);
    for (int step = 0; step < 20000; ++step) {
      const int64_t holder = random() % 9;
      if (random() % 4 != 0) {
        const auto count = static_cast<int32_t>(random() % (places.free_count() / 4 + 1));
        const int32_t next_to = static_cast<int32_t>(random() % 99) - 1;
        const auto taken = places.Take(holder, count, next_to, static_cast<int32_t>(random() % 20));
        ASSERT_EQ(static_cast<int32_t>(taken.size()), count);
        for (const int32_t block : taken) {
          ASSERT_EQ(owner[block], -1);
          owner[block] = holder;
        }
      } else {
        std::vector<int32_t> back;
        for (int32_t block = 0; block < 97; ++block) {
          if (owner[block] == holder && random() % 3 != 0) back.push_back(block);
        }
        for (const int32_t block : back) owner[block] = -1;
        std::shuffle(back.begin(), back.end(), random);
        places.Put(back);
        if (random() % 2 == 0) places.Forget(holder);
      }
      ASSERT_EQ(places.free_count(), std::count(owner.begin(), owner.end(), -1));
    }
    for (int64_t holder = 0; holder < 9; ++holder) places.Forget(holder);
    std::vector<int32_t> rest;
    for (int32_t block = 0; block < 97; ++block) {
      if (owner[block] >= 0) rest.push_back(block);
    }
    places.Put(rest);
    EXPECT_EQ(places.largest_run(), 97);
    EXPECT_EQ(places.Take(1, 97, -1, 0), Range(0, 97)) << "every neighbourhood is whole again";
  }
}

// What neighbourhoods are for, in a pool that has been full twice.
TEST(BlockPlacesTest, RequestsOfAChurnedPoolLieInLargePieces) {
  constexpr int64_t kBlockBytes = 64 * 656;
  constexpr int32_t kBlocks = 40'000;  // 1.7 GB
  const auto spread = [](int32_t neighbourhood_blocks, int32_t at_once) {
    std::vector<int32_t> generations(kBlocks);
    BlockLedger ledger("kv", kBlocks, neighbourhood_blocks, generations.data());
    testing::Churn(&ledger, {.fills = 2, .growing = 16, .blocks_max = 1024, .free_share = 0.2});
    return testing::SpreadOf(testing::Place(&ledger, 1 << 20, 8, 512, at_once), kBlockBytes);
  };
  for (const int32_t at_once : {0, 256, 512}) {
    const testing::Spread got = spread(50, at_once);
    EXPECT_GE(got.large_share, 0.75) << at_once;
    EXPECT_LE(got.huge_pages, 24) << at_once << ": 11 is the least";
  }
  EXPECT_GE(spread(1, 0).huge_pages, 300) << "without them";
}

}  // namespace
}  // namespace kvtier
