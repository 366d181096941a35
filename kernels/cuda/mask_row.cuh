// Outputs of a batch row that takes part in no transaction.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/plan.h"

namespace kvtier::cuda {

// Nothing that the step before wrote may survive. All threads of a block.
__device__ inline void MaskRow(const SwapInParams& p, const StepPlan& plan, int32_t row) {
  for (int32_t column = Thread(); column < p.shape.top_k; column += ThreadCount()) {
    const int64_t at = int64_t{row} * p.shape.top_k + column;
    p.hot_indices[at] = kNone;
    if (p.miss_mask != nullptr) p.miss_mask[at] = 0;
  }
  if (Thread() != 0) return;
  if (p.valid_counts != nullptr) p.valid_counts[row] = 0;
  plan.counts[row] = 0;
}

}  // namespace kvtier::cuda
