// One entry of a step's plan, as it may be believed.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/kept_rows.h"

namespace kvtier::cuda {

// A hot row that the plan may name, or kNone; and the slot to fill it from, kNone for zeros, or
// less for a kept row (kept_rows.h).
struct PlanEntry {
  int32_t slot, hot_row;
};

// The plan may come from the memory of another process.
__device__ inline PlanEntry LoadEntry(const StepPlan& plan, int64_t at, int32_t slot_count,
                                      int32_t hot_row_count) {
  const int32_t slot = LoadRelaxed(plan.slots + at);
  const int32_t hot_row = LoadRelaxed(plan.hot_rows + at);
  return {CheckedSource(slot, slot_count, hot_row_count),
          hot_row < 0 || hot_row >= hot_row_count ? kNone : hot_row};
}

}  // namespace kvtier::cuda
