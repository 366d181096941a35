// What is particular to the CPU kernels: threads, scratch memory, other processes' hands in the
// state. What they compute is tested with the other implementations.
#include "kernels/cpu/cpu.h"

#include <atomic>
#include <map>
#include <set>
#include <thread>

#include "gtest/gtest.h"
#include "kernels/cpu/lookup_table.h"
#include "kernels/testing/random_steps.h"
#include "kernels/testing/step_checker.h"

namespace kvtier::cpu {
namespace {

using testing::Contiguous;
using testing::GroupFixture;
using testing::GroupOptions;
using testing::Random;

TEST(ExecutorTest, ThreadCountIsClamped) {
  EXPECT_EQ(Executor(-3).thread_count(), 1);
  EXPECT_EQ(Executor(0).thread_count(), 1);
  EXPECT_EQ(Executor(3).thread_count(), 3);
  EXPECT_EQ(Executor(1000).thread_count(), Executor::kThreadsMax);
}

TEST(ExecutorTest, RunsEveryIndexOnce) {
  Executor executor(3);
  for (const int64_t count : {0, 1, 2, 3, 100, 1000}) {
    std::vector<int32_t> runs(count, 0);  // of different indices: no two threads touch one
    executor.ParallelFor(count, [&](int32_t worker, int64_t index) {
      EXPECT_GE(worker, 0);
      EXPECT_LT(worker, 3);
      ++runs[index];
    });
    EXPECT_EQ(runs, std::vector<int32_t>(count, 1));
  }
}

// Jobs so short that threads wake up after their end, one after the other.
TEST(ExecutorTest, ManyShortJobs) {
  Executor executor(4);
  int64_t total = 0;
  for (int i = 0; i < 3000; ++i) {
    std::atomic<int64_t> sum = 0;
    executor.ParallelFor(4, [&](int32_t, int64_t index) { sum += index + 1; });
    total += sum;
  }
  EXPECT_EQ(total, 3000 * 10);
}

TEST(LookupTableTest, FindsWhatWasInserted) {
  LookupTable owner_of_memory;
  Random random(5);
  for (const int32_t size : {0, 1, 2, 3, 5, 64, 1000, 2049}) {
    const LookupTable::View table = owner_of_memory.Clear(size);
    std::map<int32_t, int32_t> expected;
    for (int32_t i = 0; i < size; ++i) {
      const int32_t slot = random.OneIn(4) ? random.Below(2147483647) : random.Below(3 * size + 1);
      const auto [known, first] = expected.insert({slot, i + 1});
      EXPECT_EQ(table.FindOrInsert(slot, i + 1), known->second);
    }
    for (const auto& [slot, id] : expected) EXPECT_EQ(table.Find(slot), id);
    for (int32_t slot = 0; slot < 4 * size + 10; ++slot) {
      EXPECT_EQ(table.Find(slot), expected.count(slot) > 0 ? expected[slot] : 0);
    }
    for (const int32_t slot : {-1, -2, -2147483647 - 1}) EXPECT_EQ(table.Find(slot), 0);
  }
}

// Slots chosen to share one bucket: slow, but right.
TEST(LookupTableTest, Collisions) {
  LookupTable owner_of_memory;
  constexpr int32_t kSize = 100;
  const LookupTable::View table = owner_of_memory.Clear(kSize);
  std::vector<int32_t> slots;
  for (int32_t slot = 0; std::ssize(slots) < kSize; ++slot) {
    if ((static_cast<uint32_t>(slot) * 2654435769u) >> 20 == 0xfff) slots.push_back(slot);
  }
  for (int32_t i = 0; i < kSize; ++i) EXPECT_EQ(table.FindOrInsert(slots[i], i + 1), i + 1);
  for (int32_t i = 0; i < kSize; ++i) EXPECT_EQ(table.Find(slots[i]), i + 1);
}

GroupOptions Options() {
  GroupOptions options;
  options.shape = {
      .top_k = 16, .hot_size = 40, .region_count = 2, .block_size = 16, .slot_count = 256};
  options.layouts = {Contiguous(16)};
  options.tracking = true;
  options.num_rows = 2;
  return options;
}

// The daemon gives blocks to new tenants while a worker decodes: copies of the freed blocks go,
// and not one hot slot that the worker takes over meanwhile loses its new owner.
TEST(ConcurrencyTest, InvalidateBesideSwapIn) {
  GroupFixture group(Options());
  Executor worker(1);
  std::atomic<bool> done = false;
  std::thread daemon([&] {
    Executor executor(2);
    const std::vector<int32_t> blocks = {8, 9, 10, 11, 12, 13, 14, 15};  // slots from 128 on
    InvalidateParams params;
    params.shape = group.shape();
    params.state = {group.owner.data(), group.lru.data()};
    params.blocks = blocks.data();
    params.block_count = 8;
    params.stats = &group.stats;
    while (!done) Invalidate(params, executor);
  });
  Random random(11);
  for (int32_t step = 0; step < 3000; ++step) {
    // Slots of freed blocks are what the order is full of at the start of every round.
    if (step % 10 == 0) {
      for (int32_t i = 0; i < 80; ++i) {
        std::atomic_ref<int32_t>(group.owner[i]).store(128 + i, std::memory_order_relaxed);
      }
    }
    for (int32_t& slot : group.topk) slot = random.Below(128);
    SwapIn(group.SwapIn(), worker);
    for (int32_t i = 0; i < 32; ++i) {
      const int32_t hot_row = group.hot_indices[i];
      ASSERT_GE(hot_row, 0);
      const int32_t region = i / 16;
      const int32_t owner =
          std::atomic_ref<int32_t>(group.owner_of(region, hot_row - group.region_start(region)))
              .load(std::memory_order_relaxed);
      ASSERT_EQ(owner, group.topk[i]) << "step " << step;
    }
  }
  done = true;
  daemon.join();
  EXPECT_EQ(group.counts()[Counter::kSteps], 3000);
}

// Two workers with regions of their own, one copying rows in, one backing rows up.
TEST(ConcurrencyTest, BackupBesideSwapIn) {
  GroupFixture group(Options());
  Executor first(1);
  std::thread other([&] {
    Executor second(2);
    std::vector<int32_t> slots = {128, 129, 130, 131, 132, 133}, sources(6, 0), regions(6, 1);
    const std::vector<uint8_t> tensor(16, 0xAB);
    const uint8_t* source = tensor.data();
    BackupParams params = group.Backup();
    params.num_rows = 6;
    params.slots = slots.data();
    params.source_rows = sources.data();
    params.row_to_request = regions.data();
    params.sources = &source;
    params.source_layouts = group.layouts().data();
    params.source_row_count = 1;
    for (int32_t i = 0; i < 500; ++i) Backup(params, second);
  });
  group.row_to_request = {0, kNone};
  Random random(12);
  for (int32_t step = 0; step < 500; ++step) {
    for (int32_t i = 0; i < 16; ++i) group.topk[i] = random.Below(128);
    SwapIn(group.SwapIn(), first);
  }
  other.join();
  EXPECT_EQ(group.counts()[Counter::kBackedUpRows], 3000);
  EXPECT_EQ(group.counts()[Counter::kUnbackedReads], 0);
  EXPECT_EQ(group.HostRow(0, 133), std::string(16, '\xAB'));
}

}  // namespace
}  // namespace kvtier::cpu
