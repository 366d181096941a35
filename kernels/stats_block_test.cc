#include "kernels/stats_block.h"

#include <atomic>
#include <thread>
#include <vector>

#include "gtest/gtest.h"

namespace kvtier {
namespace {

Counts AllOnes() {
  Counts counts;
  for (int64_t& value : counts.values) value = 1;
  return counts;
}

TEST(StatsBlockTest, AddsUp) {
  StatsBlock block;
  Counts counts;
  counts[Counter::kHits] = 5;
  counts[Counter::kEvictions] = 7;
  AddCounts(&block, counts);
  AddCounts(&block, counts);
  AddCounts(nullptr, counts);
  Counts read;
  EXPECT_TRUE(ReadCounts(&block, &read));
  EXPECT_EQ(read[Counter::kHits], 10);
  EXPECT_EQ(read[Counter::kEvictions], 14);
  EXPECT_EQ(read[Counter::kMisses], 0);
  EXPECT_EQ(Imbalance(block), 0u);
}

// A worker can write any number where its counts are; the daemon adds them up all the same.
TEST(StatsBlockTest, SumsOfWhatAWorkerHasWrittenWrap) {
  Counts sum, written;
  written[Counter::kHits] = INT64_MAX;
  written[Counter::kMisses] = INT64_MIN;
  sum += written;
  sum += written;
  EXPECT_EQ(sum[Counter::kHits], -2);
  EXPECT_EQ(sum[Counter::kMisses], 0);
  EXPECT_EQ(WrappingDifference(INT64_MIN, 1), INT64_MAX);
}

// Whoever reads while others write gets all of a call or nothing of it.
TEST(StatsBlockTest, ReadersSeeOneMoment) {
  constexpr int kWriters = 2, kCalls = 20000;
  StatsBlock block;
  std::atomic<int> writing = kWriters;
  std::vector<std::thread> threads;
  for (int i = 0; i < kWriters; ++i) {
    threads.emplace_back([&] {
      for (int call = 0; call < kCalls; ++call) AddCounts(&block, AllOnes());
      --writing;
    });
  }
  int64_t last = 0, moments = 0;
  while (writing > 0) {
    Counts read;
    if (!ReadCounts(&block, &read)) continue;
    ++moments;
    EXPECT_GE(read.values[0], last);
    last = read.values[0];
    for (const int64_t value : read.values) EXPECT_EQ(value, last);
  }
  for (std::thread& thread : threads) thread.join();
  Counts read;
  ASSERT_TRUE(ReadCounts(&block, &read));
  for (const int64_t value : read.values) EXPECT_EQ(value, int64_t{kWriters} * kCalls);
  EXPECT_GT(moments + 1, 0);
}

// A writer that was killed half-way leaves an imbalance, which stays as it is.
TEST(StatsBlockTest, DeadWriterStopsNobody) {
  StatsBlock block;
  block.counts[0] = 3;
  Counts read;
  EXPECT_FALSE(ReadCounts(&block, &read));  // it may be alive still, and half done
  EXPECT_EQ(read.values[0], 3);
  const uint32_t imbalance = Imbalance(block);
  EXPECT_NE(imbalance, 0u);
  AddCounts(&block, AllOnes());
  EXPECT_EQ(Imbalance(block), imbalance);
  EXPECT_FALSE(ReadCounts(&block, &read));
  EXPECT_EQ(read.values[0], 4);
  EXPECT_EQ(read.values[1], 1);
}

// Any part of an addition that is missing is seen.
TEST(StatsBlockTest, EveryCounterWeighs) {
  for (int32_t c = 0; c < kCounterCount; ++c) {
    StatsBlock block;
    AddCounts(&block, AllOnes());
    for (int32_t other = c; other < kCounterCount; ++other) {
      --block.counts[other];
      EXPECT_NE(Imbalance(block), 0u) << c << " to " << other;
    }
  }
}

}  // namespace
}  // namespace kvtier
