// Which warp of a row's blocks copies which of its misses, where some have begun before anybody
// knew how many there are.
//
// A warp resolves the same positions in every block. Warp W of the early block E begins with the
// E-th position that warp W misses. Positions beyond that in their warp are the rest: they are
// numbered through, and copying warps take turns at them, first the idle ones of early blocks,
// which found nothing to begin with, then those of late blocks, which have something else to do
// before, then the busy ones. Every warp works that out by itself, from the numbers of missing
// positions of all warps.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/scan.cuh"

namespace kvtier::cuda {

class Shares {
 public:
  // `missing`: of the positions of the warp that has this lane's number, 0 if there is none.
  // All of them are less than 1 << 15. early_blocks may be 0: then all is rest.
  __device__ Shares(int32_t missing, int32_t early_blocks) : early_(early_blocks) {
    // Two sums in a word: shuffles are what this costs.
    const int32_t begun = min(missing, early_);
    const int32_t both = (missing - begun) << 16 | begun;
    const int32_t sums = InclusiveWarpSum(both);
    before_ = sums - both;
    const int32_t all = __shfl_sync(kAllLanes, sums, kWarpThreads - 1);
    rest_ = all >> 16;
    idle_ = early_ * WarpCount() - (all & 0xffff);
    mine_begun_ = __shfl_sync(kAllLanes, begun, Warp());
    mine_before_ = __shfl_sync(kAllLanes, before_, Warp());
  }

  // Of the missing positions.
  __device__ int32_t rest() const { return rest_; }
  // The number of the missing position that this warp of the early block `turn` begins with, or
  // kNone.
  __device__ int32_t First(int32_t turn) const {
    return turn < mine_begun_ ? (mine_before_ >> 16) + (mine_before_ & 0xffff) + turn : kNone;
  }
  // How many of the rest are left when each idle warp has taken one.
  __device__ int32_t excess() const { return rest_ - idle_; }
  // Where this warp of the copying block `turn` stands in the row of those that take turns at the
  // rest. busy_first: busy ones before late blocks.
  __device__ int32_t Place(int32_t turn, int32_t late_blocks, bool busy_first) const {
    const int32_t late = late_blocks * WarpCount();
    const int32_t busy = early_ * WarpCount() - idle_;
    if (turn >= early_) {
      return idle_ + (busy_first ? busy : 0) + (turn - early_) * WarpCount() + Warp();
    }
    const int32_t begun_before = mine_before_ & 0xffff;
    if (turn >= mine_begun_) return early_ * Warp() - begun_before + turn - mine_begun_;
    return idle_ + (busy_first ? 0 : late) + begun_before + turn;
  }
  // The number of the missing position that is the u-th of the rest.
  __device__ int32_t Rest(int32_t u) const {
    const int32_t lane =
        31 - __clz(static_cast<int32_t>(__ballot_sync(kAllLanes, before_ >> 16 <= u)));
    return (__shfl_sync(kAllLanes, before_, lane) & 0xffff) + early_ + u;
  }

 private:
  const int32_t early_;
  // Of the warps before one: missing positions of the rest in the upper half, those that have been
  // begun with in the lower one. Of the warp with this lane's number, and of this warp.
  int32_t before_, mine_before_;
  int32_t mine_begun_;   // of this warp
  int32_t rest_, idle_;  // of all
};

}  // namespace kvtier::cuda
