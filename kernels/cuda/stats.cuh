// How what a kernel counts reaches a StatsBlock (kernels/stats_block.h, with GPU instructions).
//
// Blocks add to the counts in the workspace header; a single warp of the call, at a time when
// no other block counts any more, moves them into the StatsBlock under its sequence. So a
// reader, on whatever processor, sees all of a call's counts or none.
#pragma once

#include "kernels/counters.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/workspace.h"

namespace kvtier::cuda {

using AtomicWord = unsigned long long;  // what 64-bit atomics take

static_assert(kCounterCount <= kWarpThreads, "a lane for each counter");

// Looks at one unchanged odd sequence before a dead writer's turn is taken over; one takes about a
// microsecond.
inline constexpr int32_t kTakeOverLooks = 128;

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

// Makes the sequence odd and returns its new value: this writer's turn. One thread.
__device__ inline AtomicWord BeginTurn(AtomicWord* sequence) {
  AtomicWord seen = LoadRelaxed(sequence);
  int32_t looks = 0;  // at the same odd value
  for (;;) {
    const bool free = (seen & 1) == 0;
    AtomicWord now;
    if (free || looks >= kTakeOverLooks) {
      const AtomicWord turn = seen + (free ? 1 : 2);
      now = atomicCAS_system(sequence, seen, turn);
      if (now == seen) return turn;
    } else {
      __nanosleep(500);
      now = LoadRelaxed(sequence);
    }
    looks = now == seen ? looks + 1 : 0;
    seen = now;
  }
}

// Adds lane c's value to counter c. All lanes of one warp. `stats` may be null.
__device__ inline void AddToStats(StatsBlock* stats, int64_t value) {
  if (stats == nullptr || !__any_sync(kAllLanes, value != 0)) return;
  AtomicWord* sequence = reinterpret_cast<AtomicWord*>(&stats->sequence);
  AtomicWord turn = 0;
  if (Lane() == 0) {
    turn = BeginTurn(sequence);
    // Whoever sees one of the new counts also sees the odd sequence.
    __threadfence_system();
  }
  __syncwarp();
  if (value != 0) {
    atomicAdd_system(reinterpret_cast<AtomicWord*>(stats->counts + Lane()),
                     static_cast<AtomicWord>(value));
    // And whoever sees the next even sequence sees all of them.
    __threadfence_system();
  }
  __syncwarp();
  if (Lane() == 0) {
    __threadfence_system();
    // Fails when another writer took the turn over: then it, not we, ends it.
    atomicCAS_system(sequence, turn, turn + 1);
  }
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
