// A step takes no memory once its shapes have been seen: a decode loop must not wait for a heap.
#include <atomic>
#include <cstdlib>
#include <new>

#include "gtest/gtest.h"
#include "kernels/cpu/cpu.h"
#include "kernels/testing/random_steps.h"

namespace {
std::atomic<int64_t> allocations = 0;  // replaced operators have nowhere else to count
}  // namespace

// Not inlined: gcc would see a new that ends in free() and warn of a mismatch.
[[gnu::noinline]] void* operator new(size_t size) {
  ++allocations;
  void* memory = std::malloc(size);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void* operator new(size_t size, std::align_val_t alignment) {
  ++allocations;
  const auto a = static_cast<size_t>(alignment);
  void* memory = std::aligned_alloc(a, (size + a - 1) / a * a);
  if (memory == nullptr) std::abort();
  return memory;
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, size_t) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
[[gnu::noinline]] void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}

namespace kvtier::cpu {
namespace {

TEST(AllocationTest, StepsAllocateNothing) {
  testing::GroupOptions options;
  options.shape = {.top_k = 33,
                   .hot_size = 80,
                   .region_count = 3,
                   .rows_per_request = 2,
                   .block_size = 16,
                   .slot_count = 480};
  options.layouts = {testing::Contiguous(32), testing::DeepSeekV4Layout()};
  options.num_rows = 6;
  options.tracking = true;
  testing::GroupFixture group(options);
  testing::RandomSteps steps(/*seed=*/8, &group);
  Executor executor(2);
  const std::vector<int32_t> blocks = {1, 2, 3};
  const InvalidateParams invalidate = group.Invalidate(blocks);
  int64_t spent = 0;
  for (int32_t i = 0; i < 300; ++i) {
    const testing::Round round = steps.Next();
    testing::Prepare(round, testing::Reference(), &group);
    BackupParams backup = group.Backup();
    backup.num_rows = group.num_rows();
    backup.row_to_request = group.row_to_request.data();
    backup.slots = group.newest_slot.data();
    const int64_t before = allocations;
    SwapIn(group.SwapIn(), executor);
    ReplayPlan(group.ReplayPlan(), executor);
    Backup(backup, executor);
    if (i % 10 == 0) Invalidate(invalidate, executor);
    if (i > 0) spent += allocations - before;
  }
  EXPECT_EQ(spent, 0);
}

}  // namespace
}  // namespace kvtier::cpu
