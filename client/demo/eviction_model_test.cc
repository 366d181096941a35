#include "client/demo/eviction_model.h"

#include <vector>

#include "gtest/gtest.h"

namespace kvtier::demo {
namespace {

void ExpectCounts(const StepCounts& counts, int64_t hits, int64_t misses, int64_t newest) {
  EXPECT_EQ(counts.hits, hits);
  EXPECT_EQ(counts.misses, misses);
  EXPECT_EQ(counts.newest, newest);
}

TEST(EvictionModel, TheOldestGoesFirst) {
  EvictionModel lru(3, EvictionPolicy::kLru);
  ExpectCounts(lru.Step(std::vector<int32_t>{10, 11, 12}, -1), 0, 3, 0);
  ExpectCounts(lru.Step(std::vector<int32_t>{10}, -1), 1, 0, 0);
  ExpectCounts(lru.Step(std::vector<int32_t>{13}, -1), 0, 1, 0);  // 11 goes
  ExpectCounts(lru.Step(std::vector<int32_t>{10, 12, 13}, -1), 3, 0, 0);
  ExpectCounts(lru.Step(std::vector<int32_t>{11}, -1), 0, 1, 0);
}

TEST(EvictionModel, EqualSlotsAreOneLookup) {
  EvictionModel lru(4, EvictionPolicy::kLru);
  ExpectCounts(lru.Step(std::vector<int32_t>{5, 5, 6, 5}, -1), 0, 2, 0);
  ExpectCounts(lru.Step(std::vector<int32_t>{6, 6}, -1), 1, 0, 0);
}

TEST(EvictionModel, TheNewestIsNoLookupAndItsCopyIsStale) {
  EvictionModel lru(4, EvictionPolicy::kLru);
  ExpectCounts(lru.Step(std::vector<int32_t>{5, 6}, 7), 0, 2, 0);
  ExpectCounts(lru.Step(std::vector<int32_t>{5, 6}, 5), 1, 0, 1);
  ExpectCounts(lru.Step(std::vector<int32_t>{5, 6}, 7), 1, 1, 0);  // 5 was dropped
}

TEST(EvictionModel, ForgottenBlocksMiss) {
  EvictionModel lru(4, EvictionPolicy::kLru);
  ExpectCounts(lru.Step(std::vector<int32_t>{3, 4, 7, 8}, -1), 0, 4, 0);
  lru.Forget(/*block=*/1, /*block_size=*/4);
  ExpectCounts(lru.Step(std::vector<int32_t>{3, 4, 7, 8}, -1), 2, 2, 0);
}

TEST(EvictionModel, AgedKeepsWhatWasHit) {
  EvictionModel aged(3, EvictionPolicy::kAged);
  ExpectCounts(aged.Step(std::vector<int32_t>{10, 11}, -1), 0, 2, 0);
  ExpectCounts(aged.Step(std::vector<int32_t>{10}, -1), 1, 0, 0);
  ExpectCounts(aged.Step(std::vector<int32_t>{11}, -1), 1, 0, 0);
  ExpectCounts(aged.Step(std::vector<int32_t>{12}, -1), 0, 1, 0);
  // LRU would give 10 away, the oldest; 12 was never hit.
  ExpectCounts(aged.Step(std::vector<int32_t>{13}, -1), 0, 1, 0);
  ExpectCounts(aged.Step(std::vector<int32_t>{10, 11, 13}, -1), 3, 0, 0);
}

TEST(EvictionModel, AgedKeepsTheRowBackedUpLast) {
  for (const EvictionPolicy policy : {EvictionPolicy::kLru, EvictionPolicy::kAged}) {
    const int64_t kept = policy == EvictionPolicy::kAged ? 1 : 0;
    EvictionModel model(2, policy);
    model.Step(std::vector<int32_t>{10}, 10);
    model.Backup(10);
    EXPECT_EQ(model.Step(std::vector<int32_t>{10}, 11).kept, kept);
    EXPECT_EQ(model.Step(std::vector<int32_t>{10}, 11).kept, 0);  // is a hit
    EXPECT_EQ(model.Step(std::vector<int32_t>{20, 21}, 11).kept, 0);
    EXPECT_EQ(model.Step(std::vector<int32_t>{10}, 11).kept, kept);
    model.Backup(11);
    model.Step(std::vector<int32_t>{20, 21}, 11);  // is being rewritten
    EXPECT_EQ(model.Step(std::vector<int32_t>{11}, 12).kept, 0);
    model.Backup(12);
    model.Forget(/*block=*/3, /*block_size=*/4);
    EXPECT_EQ(model.Step(std::vector<int32_t>{12}, 13).kept, 0);
  }
}

TEST(EvictionModel, AgedForgetsWhatNobodyAsksFor) {
  EvictionModel aged(2, EvictionPolicy::kAged);
  for (int i = 0; i < 9; ++i) aged.Step(std::vector<int32_t>{10}, -1);
  for (int i = 0; i < 40; ++i) aged.Step(std::vector<int32_t>{20 + i}, -1);
  ExpectCounts(aged.Step(std::vector<int32_t>{10}, -1), 0, 1, 0);
}

}  // namespace
}  // namespace kvtier::demo
