// How the warps of a grid share the entries of a plan.
//
// Work is compact: entry e of layer l is item l * entries + e, and warp w takes items w, w + warps,
// ... A few busy requests therefore use every multiprocessor, and layers follow each other, so that
// the part of the host pool touched at a time stays small (address translation). The number of
// entries is known on the device only; the grid is a fixed one that fits the GPU.
//
// Costs before the first byte moves: one load of 32 rows' counts, one of an entry.
#pragma once

#include "kernels/cuda/copy_plan.h"
#include "kernels/cuda/device.cuh"
#include "kernels/cuda/plan_entry.cuh"
#include "kernels/cuda/scan.cuh"

namespace kvtier::cuda {

// The plan of 32 batch rows, a row each lane. All lanes make and use it together.
class PlanChunk {
 public:
  __device__ PlanChunk(const CopyPlanArgs& a, int32_t first_row, int32_t row_end) {
    const int32_t row = first_row + Lane();
    if (row < row_end) {
      entries_ = min(max(LoadRelaxed(a.plan.counts + row), 0), a.top_k);
      const int32_t place =
          a.plan.units == nullptr || entries_ == 0 ? row : LoadRelaxed(a.plan.units + row);
      start_ = PlanStart(place, a.top_k);
    }
    end_ = InclusiveWarpSum(entries_);
    total_ = __shfl_sync(kAllLanes, end_, kWarpThreads - 1);
  }

  __device__ int32_t total() const { return total_; }

  // Where entry `index` (in [0, total)) lies in the plan.
  __device__ int64_t At(int32_t index) const {
    const int32_t lane = __popc(__ballot_sync(kAllLanes, end_ <= index));
    const int32_t before = __shfl_sync(kAllLanes, end_ - entries_, lane);
    return __shfl_sync(kAllLanes, static_cast<long long>(start_), lane) + index - before;
  }

 private:
  int32_t entries_ = 0;
  int64_t start_ = 0;
  int32_t end_;  // sum of entries up to this lane
  int32_t total_;
};

__device__ inline int64_t CountEntries(const CopyPlanArgs& a, int32_t row_end) {
  int64_t total = 0;
  for (int32_t row = 0; row < row_end; row += kWarpThreads) {
    total += PlanChunk(a, row, row_end).total();
  }
  return total;
}

__device__ inline PlanEntry LoadEntry(const CopyPlanArgs& a, int64_t at) {
  return LoadEntry(a.plan, at, a.slot_count, a.hot_row_count);
}

// Calls use(layer, entry) for the warp's items of all layers, with all lanes. The warps of
// `blocks` blocks share them; neighbouring entries go to different multiprocessors.
template <typename Use>
__device__ inline void ForItems(const CopyPlanArgs& a, int32_t layer_count, int32_t row_end,
                                int32_t blocks, const Use& use) {
  const int64_t warps = int64_t{blocks} * WarpCount();
  const int64_t warp = int64_t{Warp()} * blocks + blockIdx.x;
  const int64_t entries = CountEntries(a, row_end);
  if (entries == 0) return;
  for (int32_t l = 0; l < layer_count; ++l) {
    // The first item of this layer that is the warp's: items of earlier layers count along.
    const int64_t offset = (l * entries) % warps;
    int64_t next = warp >= offset ? warp - offset : warp - offset + warps;
    int64_t before = 0;
    for (int32_t row = 0; row < row_end; row += kWarpThreads) {
      const PlanChunk chunk(a, row, row_end);
      for (; next < before + chunk.total(); next += warps) {
        const PlanEntry entry = LoadEntry(a, chunk.At(static_cast<int32_t>(next - before)));
        if (entry.hot_row >= 0) use(l, entry);
      }
      before += chunk.total();
    }
  }
}

}  // namespace kvtier::cuda
