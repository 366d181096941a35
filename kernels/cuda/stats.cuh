// How what a kernel counts reaches a StatsBlock (kernels/stats_block.h, with GPU instructions).
//
// A block's counts go to the StatsBlock at once, in one addition (IndexedSwapIn), or to the counts
// in the workspace header, which a single warp of the call moves on when no other block counts any
// more. A reader, on whatever processor, sees all of an addition or nothing of it.
#pragma once

#include "kernels/counters.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/workspace.h"

namespace kvtier::cuda {

using AtomicWord = unsigned long long;  // what 64-bit atomics take

// One block's counts, in shared memory: int32 [kCounterCount], zeroed by the caller.
class BlockCounts {
 public:
  __device__ explicit BlockCounts(int32_t* counts) : counts_(counts) {}

  // Adds the number of lanes where `mine` is true. All lanes of the warp.
  __device__ void CountLanes(Counter counter, bool mine) {
    const int32_t lanes = __popc(__ballot_sync(kAllLanes, mine));
    if (lanes > 0 && Lane() == 0) Add(counter, lanes);
  }
  // By one thread.
  __device__ void Add(Counter counter, int32_t by) {
    atomicAdd(counts_ + static_cast<int32_t>(counter), by);
  }
  // By all threads: thread c says what counter c is.
  __device__ void Set(int32_t value) {
    if (Thread() < kCounterCount) counts_[Thread()] = value;
  }
  // To the counts of the call; behind a barrier that follows the last Add. All threads.
  __device__ void Flush(WorkspaceHeader* header) const {
    for (int32_t c = Thread(); c < kCounterCount; c += ThreadCount()) {
      if (counts_[c] != 0) {
        atomicAdd(header->counts + c, static_cast<AtomicWord>(counts_[c]));
      }
    }
  }

 private:
  int32_t* counts_;
};

// Adds lane c's value to counter c, in one instruction with the weighted sum of all. All lanes of a
// warp; `stats` may be null.
__device__ inline void AddToStats(StatsBlock* stats, int64_t value) {
  static_assert(kCounterCount < kWarpThreads, "a lane for each counter and one for their sum");
  constexpr int32_t kCheck = kCounterCount;
  if (stats == nullptr) return;
  const bool counts = Lane() < kCounterCount;
  const uint32_t weight = counts ? static_cast<uint32_t>(value) * CountWeight(Lane()) : 0;
  const uint32_t check = __reduce_add_sync(kAllLanes, weight);
  int64_t* const to = counts ? stats->counts + Lane() : &stats->check;
  if (Lane() == kCheck) value = check;
  if (Lane() > kCheck || value == 0) return;
  atomicAdd(reinterpret_cast<AtomicWord*>(to), static_cast<AtomicWord>(value));
}

// Takes lane c's counter c out of the header, which is zero afterwards. All lanes of a warp.
__device__ inline int64_t TakeCounts(WorkspaceHeader* header) {
  if (Lane() >= kCounterCount) return 0;
  const AtomicWord value = LoadRelaxed(header->counts + Lane());
  if (value != 0) StoreRelaxed(header->counts + Lane(), AtomicWord{0});
  return static_cast<int64_t>(value);
}

// True in all threads of the block that finishes last of the grid: it then sees everything that
// every thread of the other blocks did before. All threads of all blocks, once a kernel.
__device__ inline bool IsLastBlock(WorkspaceHeader* header) {
  __threadfence_system();
  bool is_last = false;
  __syncthreads();
  if (Thread() == 0) {
    is_last = atomicAdd(&header->blocks_done, 1u) == gridDim.x - 1;
    if (is_last) StoreRelaxed(&header->blocks_done, 0u);
  }
  is_last = __syncthreads_or(is_last) != 0;
  if (is_last) __threadfence_system();
  return is_last;
}

}  // namespace kvtier::cuda
