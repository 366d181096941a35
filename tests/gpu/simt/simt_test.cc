// The simulated GPU finds what it says it finds.
#include "tests/gpu/simt/simt.h"

#include <cuda_runtime.h>

#include <numeric>
#include <set>
#include <vector>

#include "gtest/gtest.h"

namespace kvtier::cuda {
extern uint4 shared_memory[];
}  // namespace kvtier::cuda

namespace simt {
namespace {

int* SharedInts() { return reinterpret_cast<int*>(kvtier::cuda::shared_memory); }

// Each thread's value, a row each block.
template <typename Kernel>
std::vector<int> Results(const Grid& grid, uint64_t seed, const Kernel& kernel) {
  std::vector<int> results(grid.blocks * grid.threads, -1);
  SetGpu({.seed = seed});
  EXPECT_TRUE(simt::Run(grid, [&] { results[blockIdx.x * blockDim.x + threadIdx.x] = kernel(); }));
  return results;
}

int ReverseThroughSharedMemory(bool with_barrier) {
  const unsigned i = threadIdx.x;
  SharedInts()[i] = static_cast<int>(i);
  if (with_barrier) __syncthreads();
  return SharedInts()[blockDim.x - 1 - i];
}

TEST(Simt, BarriersAndExchangesWork) {
  const auto results = Results({3, 96, 96 * 4}, 1, [] {
    const int other = ReverseThroughSharedMemory(true);
    const unsigned odd = __ballot_sync(0xffffffffu, threadIdx.x % 2);
    const int left = __shfl_up_sync(0xffffffffu, other, 1);
    const int first = __shfl_sync(0xffffffffu, other, 0);
    __syncwarp();
    const int count = __syncthreads_count(threadIdx.x < 40);
    return odd == 0xaaaaaaaau && first == 95 - static_cast<int>(threadIdx.x / 32 * 32) &&
                   left == (threadIdx.x % 32 == 0 ? other : other + 1) && count == 40
               ? 1
               : 0;
  });
  EXPECT_EQ(std::accumulate(results.begin(), results.end(), 0), 3 * 96);
}

TEST(Simt, AMissingBarrierShowsAsAResultThatDependsOnTheSeed) {
  std::set<std::vector<int>> with, without;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    const Grid grid = {1, 64, 64 * 4};
    with.insert(Results(grid, seed, [] { return ReverseThroughSharedMemory(true); }));
    without.insert(Results(grid, seed, [] { return ReverseThroughSharedMemory(false); }));
  }
  EXPECT_EQ(with.size(), 1);
  EXPECT_GT(without.size(), 1);
}

TEST(Simt, SharedMemoryIsPoisonedForEveryBlock) {
  const auto results = Results({2, 32, 4}, 1, [] {
    const int before = SharedInts()[0];
    __syncthreads();
    SharedInts()[0] = 7;
    return before;
  });
  EXPECT_EQ(std::set<int>(results.begin(), results.end()),
            std::set<int>{static_cast<int>(0xA5A5A5A5u)});
}

TEST(Simt, RefusesWhatNoGpuLaunches) {
  SetGpu({.shared_bytes_max = 64 * 1024});
  const auto nothing = [] {};
  EXPECT_FALSE(simt::Run({0, 32, 0}, nothing));
  EXPECT_FALSE(simt::Run({1, 33, 0}, nothing));
  EXPECT_FALSE(simt::Run({1, 1056, 0}, nothing));
  EXPECT_FALSE(simt::Run({1, 32, 48 * 1024 + 1}, nothing));
  EXPECT_NE(cudaFuncSetAttribute(nullptr, cudaFuncAttributeMaxDynamicSharedMemorySize, 65 * 1024),
            cudaSuccess);
  EXPECT_EQ(cudaFuncSetAttribute(nullptr, cudaFuncAttributeMaxDynamicSharedMemorySize, 60 * 1024),
            cudaSuccess);
  EXPECT_TRUE(simt::Run({1, 32, 60 * 1024}, nothing));
}

using SimtDeathTest = ::testing::Test;

TEST(SimtDeathTest, ABarrierThatSomeThreadsDoNotReach) {
  EXPECT_DEATH(simt::Run({1, 64, 0},
                         [] {
                           if (threadIdx.x < 63) __syncthreads();
                         }),
               "barrier");
}

void TwoBarriers() {
  if (threadIdx.x < 32) {
    __syncthreads();
  } else {
    __syncthreads();
  }
}

TEST(SimtDeathTest, ABarrierThatIsAnotherOne) {
  EXPECT_DEATH(simt::Run({1, 64, 0}, TwoBarriers), "another line");
}

TEST(SimtDeathTest, AnExchangeWithoutAllLanes) {
  EXPECT_DEATH(simt::Run({1, 32, 0},
                         [] {
                           if (threadIdx.x != 5) __ballot_sync(0xffffffffu, 1);
                         }),
               "not all threads reach");
}

TEST(SimtDeathTest, AWritePastSharedMemory) {
  EXPECT_DEATH(simt::Run({1, 32, 16}, [] { SharedInts()[4] = 1; }),
               "past the end of shared memory");
}

}  // namespace
}  // namespace simt
