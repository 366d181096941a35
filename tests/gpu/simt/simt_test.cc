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

constexpr Place kHere = Place::Here();

// In each block of a cluster of four the sum of what their threads and those of the others got.
int SumOverCluster(std::vector<int>* of_blocks) {
  for (int round = 0; round < 3; ++round) {
    (*of_blocks)[blockIdx.x] += static_cast<int>(threadIdx.x);
    ArriveAtCluster(kHere);
    __syncthreads();
    WaitForCluster(kHere);
  }
  const unsigned first = blockIdx.x / 4 * 4;
  return std::accumulate(of_blocks->begin() + first, of_blocks->begin() + first + 4, 0);
}

TEST(Simt, BlocksOfAClusterWaitForEachOther) {
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<int> results(8 * 64), of_blocks(8);
    SetGpu({.seed = seed, .has_clusters = true});
    EXPECT_TRUE(simt::Run({8, 64, 0, 4}, [&] {
      results[blockIdx.x * 64 + threadIdx.x] = SumOverCluster(&of_blocks);
    }));
    EXPECT_EQ(std::set<int>(results.begin(), results.end()), std::set<int>{3 * 4 * 63 * 64 / 2});
  }
}

// What the first block has written, as the others see it, if it stays for them.
int FirstOfCluster(bool stays) {
  SharedInts()[threadIdx.x] = static_cast<int>(100 * blockIdx.x + threadIdx.x);
  ArriveAtCluster(kHere);
  WaitForCluster(kHere);
  const int first = *static_cast<const int*>(OfFirstBlock(&SharedInts()[threadIdx.x], kHere));
  const int mine = SharedInts()[threadIdx.x];
  if (stays) {
    ArriveAtCluster(kHere);
    WaitForCluster(kHere);
  }
  return mine == static_cast<int>(100 * blockIdx.x + threadIdx.x) ? first : -1;
}

TEST(Simt, BlocksOfAClusterReadWhatTheFirstHas) {
  std::vector<int> results(4 * 32);
  SetGpu({.seed = 1, .has_clusters = true});
  EXPECT_TRUE(simt::Run({4, 32, 4 * 32, 2},
                        [&] { results[blockIdx.x * 32 + threadIdx.x] = FirstOfCluster(true); }));
  for (int i = 0; i < 4 * 32; ++i) EXPECT_EQ(results[i], i / 64 * 200 + i % 32) << i;
}

TEST(Simt, ThreadsThatHaveLeftCountAsArrived) {
  SetGpu({.seed = 1, .has_clusters = true});
  std::vector<int> left(4), waited(4);
  EXPECT_TRUE(simt::Run({4, 64, 0, 4}, [&] {
    if (blockIdx.x % 2 == 0) {
      if (blockIdx.x == 2) ArriveAtCluster(kHere);  // and does not wait
      left[blockIdx.x] += 1;
      return;
    }
    for (int round = 0; round < 2; ++round) {
      ArriveAtCluster(kHere);
      WaitForCluster(kHere);
    }
    waited[blockIdx.x] += left[0] + left[2];
  }));
  EXPECT_EQ(left, (std::vector<int>{64, 0, 64, 0}));
  EXPECT_EQ(waited, (std::vector<int>{0, 64 * 128, 0, 64 * 128}));
}

// Blocks of different clusters never run at the same time, blocks of one always do.
TEST(Simt, AMissingClusterBarrierShowsAsAResultThatDependsOnTheSeed) {
  const auto play = [](uint64_t seed, bool with_barrier) {
    std::vector<int> written(2), results(2);
    SetGpu({.seed = seed, .has_clusters = true});
    EXPECT_TRUE(simt::Run({2, 32, 0, 2}, [&] {
      written[blockIdx.x] = 1;
      __syncthreads();
      if (with_barrier) {
        ArriveAtCluster(kHere);
        WaitForCluster(kHere);
      }
      results[blockIdx.x] = written[1 - blockIdx.x];
    }));
    return results;
  };
  std::set<std::vector<int>> with, without;
  for (uint64_t seed = 0; seed < 16; ++seed) {
    with.insert(play(seed, true));
    without.insert(play(seed, false));
  }
  EXPECT_EQ(with.size(), 1);
  EXPECT_GT(without.size(), 1);
}

TEST(Simt, RefusesClustersThatNoGpuLaunches) {
  const auto nothing = [] {};
  SetGpu({});
  EXPECT_FALSE(simt::Run({4, 32, 0, 2}, nothing));
  SetGpu({.has_clusters = true});
  EXPECT_TRUE(simt::Run({16, 32, 0, 8}, nothing));
  EXPECT_FALSE(simt::Run({16, 32, 0, 16}, nothing));
  EXPECT_FALSE(simt::Run({6, 32, 0, 3}, nothing));
  EXPECT_FALSE(simt::Run({6, 32, 0, 4}, nothing));
  EXPECT_FALSE(simt::Run({6, 32, 0, 0}, nothing));
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

// Lane 0 comes to a barrier once more than its warp, as on a GPU where code behind a barrier was
// moved into the branch of one thread.
TEST(SimtDeathTest, ABarrierThatOneLaneReachesAgain) {
  EXPECT_DEATH(simt::Run({1, 64, 0},
                         [] {
                           for (unsigned round = 0; round < (threadIdx.x == 0 ? 2 : 1); ++round) {
                             __syncthreads_and(1);
                           }
                         }),
               "have left the kernel|not all threads reach");
}

// Runs it in both blocks of a cluster of two warps each.
template <typename Kernel>
void RunPair(const Kernel& kernel) {
  SetGpu({.seed = 1, .has_clusters = true});
  simt::Run({2, 64, 16, 2}, kernel);
}

TEST(SimtDeathTest, AClusterBarrierWithoutAllLanes) {
  EXPECT_DEATH(RunPair([] {
                 if (threadIdx.x % 32 != 5) ArriveAtCluster(kHere);
               }),
               "not all threads reach");
  EXPECT_DEATH(RunPair([] {
                 ArriveAtCluster(kHere);
                 if (threadIdx.x % 32 != 5) WaitForCluster(kHere);
               }),
               "not all threads reach");
}

TEST(SimtDeathTest, AClusterBarrierThatSomeBlockNeverReaches) {
  EXPECT_DEATH(RunPair([] {
                 if (blockIdx.x == 0 || threadIdx.x < 32) {
                   ArriveAtCluster(kHere);
                   WaitForCluster(kHere);
                 }
                 __syncthreads();
                 if (blockIdx.x == 1 && threadIdx.x < 32) {
                   ArriveAtCluster(kHere);
                   WaitForCluster(kHere);
                 }
                 __syncthreads();
               }),
               "not all threads reach");
}

TEST(SimtDeathTest, TwoArrivalsWithoutAWait) {
  EXPECT_DEATH(RunPair([] {
                 ArriveAtCluster(kHere);
                 ArriveAtCluster(kHere);
               }),
               "second arrival");
}

TEST(SimtDeathTest, AWaitWithoutAnArrival) {
  EXPECT_DEATH(RunPair([] { WaitForCluster(kHere); }), "without an arrival");
  EXPECT_DEATH(RunPair([] {
                 ArriveAtCluster(kHere);
                 WaitForCluster(kHere);
                 WaitForCluster(kHere);
               }),
               "without an arrival");
}

TEST(SimtDeathTest, AReadFromABlockThatHasLeft) {
  EXPECT_DEATH(RunPair([] {
                 if (blockIdx.x == 0) return;
                 ArriveAtCluster(kHere);
                 WaitForCluster(kHere);
                 OfFirstBlock(SharedInts(), kHere);
               }),
               "has left the kernel");
}

TEST(SimtDeathTest, AWritePastSharedMemoryInACluster) {
  EXPECT_DEATH(RunPair([] {
                 if (blockIdx.x == 1) SharedInts()[4] = 1;
               }),
               "past the end of shared memory");
}

TEST(SimtDeathTest, AWritePastSharedMemory) {
  EXPECT_DEATH(simt::Run({1, 32, 16}, [] { SharedInts()[4] = 1; }),
               "past the end of shared memory");
}

}  // namespace
}  // namespace simt
