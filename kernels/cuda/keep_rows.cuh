// Newest rows that stay on the device when they are backed up (kernels/kept_rows.h).
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/kept_rows.h"

namespace kvtier::cuda {

// Drops what `kept` (KeptOf(), not null) notes of `slot` (>= 0), unless another process has noted
// something else meanwhile. One thread.
__device__ inline void DropKept(int32_t* kept, int32_t rows_per_request, int32_t slot) {
  for (int32_t rank = 0; rank < rows_per_request; ++rank) {
    if (LoadRelaxed(kept + rank) == slot) atomicCAS(kept + rank, slot, kNone);
  }
}

// Where a copy of the backed row `slot` comes from, as plans say it: the first kept row that holds
// it, or the host pool. `kept` may be null. One thread.
__device__ inline int32_t KeptOr(const GroupShape& shape, const int32_t* kept, int32_t region,
                                 int32_t slot) {
  if (kept == nullptr) return slot;
  for (int32_t rank = 0; rank < shape.rows_per_request; ++rank) {
    if (LoadRelaxed(kept + rank) == slot) return FromHotRow(KeptRow(shape, region, rank));
  }
  return slot;
}

}  // namespace kvtier::cuda
