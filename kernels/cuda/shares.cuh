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
  // early_blocks may be 0: then all is rest.
  __device__ Shares(int32_t missing, int32_t early_blocks) : early_(early_blocks) {
    const int32_t rest = max(missing - early_, 0);
    before_ = InclusiveWarpSum(missing) - missing;
    rest_before_ = InclusiveWarpSum(rest) - rest;
    rest_ = __shfl_sync(kAllLanes, rest_before_ + rest, kWarpThreads - 1);
    begun_ = min(missing, early_);
    idle_ = early_ * WarpCount() -
            __shfl_sync(kAllLanes, before_ - rest_before_ + begun_, kWarpThreads - 1);
  }

  // Of the missing positions.
  __device__ int32_t rest() const { return rest_; }
  // The number of the missing position that this warp of the early block `turn` begins with, or
  // kNone.
  __device__ int32_t First(int32_t turn) const {
    const bool has_one = turn < __shfl_sync(kAllLanes, begun_, Warp());
    const int32_t before = __shfl_sync(kAllLanes, before_, Warp());
    return has_one ? before + turn : kNone;
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
    const int32_t begun = __shfl_sync(kAllLanes, begun_, Warp());
    const int32_t begun_before = __shfl_sync(kAllLanes, before_ - rest_before_, Warp());
    if (turn >= begun) return early_ * Warp() - begun_before + turn - begun;
    return idle_ + (busy_first ? 0 : late) + begun_before + turn;
  }
  // The number of the missing position that is the u-th of the rest.
  __device__ int32_t Rest(int32_t u) const {
    const int32_t lane =
        31 - __clz(static_cast<int32_t>(__ballot_sync(kAllLanes, rest_before_ <= u)));
    return __shfl_sync(kAllLanes, before_, lane) + early_ + u -
           __shfl_sync(kAllLanes, rest_before_, lane);
  }

 private:
  const int32_t early_;
  // Of the warp with this lane's number: missing positions, and those of the rest, of the warps
  // before it; how many of its own have been begun with.
  int32_t before_, rest_before_, begun_;
  int32_t rest_, idle_;  // of all
};

}  // namespace kvtier::cuda
