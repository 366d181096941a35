// Which batch rows belong to the request that a block works on.
//
// A swap-in has one block a batch row. The block of a request's first row does the whole
// transaction; the blocks of its other rows have nothing to do. Rows that take part in no
// transaction (padding, a region out of range, more rows than a request may have) are masked by
// their own blocks. Every block finds this out by itself, from row_to_request alone: no block
// waits for another.
#pragma once

#include "kernels/cuda/device.cuh"

namespace kvtier::cuda {

enum class RowRole : int32_t {
  kPadding,   // outputs are masked
  kRejected,  // ditto, and counted
  kLater,     // another block's transaction writes this row
  kFirst,     // this block's transaction
};

// Rows in [0, row) that name `region`. All threads of the block; a barrier for each blockDim.x.
__device__ inline int32_t EarlierRows(const int32_t* row_to_request, int32_t row, int32_t region) {
  int32_t count = 0;
  for (int32_t first = 0; first < row; first += ThreadCount()) {
    const int32_t other = first + Thread();
    count += __syncthreads_count(other < row && LoadRelaxed(row_to_request + other) == region);
  }
  return count;
}

// The role of batch row `row`, the same in all threads of the block. Sets *region unless it is
// kPadding. `shared_word` is one word of shared memory.
__device__ inline RowRole FindRole(const SwapInParams& p, int32_t row, int32_t* shared_word,
                                   int32_t* region) {
  // What one thread reads holds for all, also if somebody writes there meanwhile.
  if (Thread() == 0) {
    const bool is_real = row < RealRowCount(p.num_real_rows, p.num_rows);
    *shared_word = is_real ? LoadRelaxed(p.row_to_request + row) : kNone;
  }
  __syncthreads();
  *region = *shared_word;
  if (*region == kNone) return RowRole::kPadding;
  if (*region < 0 || *region >= p.shape.region_count) return RowRole::kRejected;
  const int32_t earlier = EarlierRows(p.row_to_request, row, *region);
  if (earlier == 0) return RowRole::kFirst;
  return earlier < p.shape.rows_per_request ? RowRole::kLater : RowRole::kRejected;
}

// The rows of the request in batch order, from `first_row` on, at most `rows_max` (>= 1), into
// `rows`. Returns their number to all lanes of the one warp that calls.
__device__ inline int32_t GatherRows(const SwapInParams& p, int32_t first_row, int32_t region,
                                     int32_t rows_max, int32_t* rows) {
  if (Lane() == 0) rows[0] = first_row;
  int32_t count = 1;
  const int32_t end = RealRowCount(p.num_real_rows, p.num_rows);
  for (int32_t start = first_row + 1; start < end && count < rows_max; start += kWarpThreads) {
    const int32_t other = start + Lane();
    const bool same = other < end && LoadRelaxed(p.row_to_request + other) == region;
    const uint32_t lanes = __ballot_sync(kAllLanes, same);
    const int32_t at = count + __popc(lanes & LanesBelow());
    if (same && at < rows_max) rows[at] = other;
    count += __popc(lanes);
  }
  return min(count, rows_max);
}

}  // namespace kvtier::cuda
