// The published fused swap-in, to be compared with in benchmarks and for nothing else.
//
// "Design A" of docs/BENCHMARKS.md: what the first public HiSparse kernel for vLLM does, written
// anew from its description. One block of 1,024 threads serves one batch row from the first
// position to the last copied byte. It leaves the outputs, owners, orders and hot rows that
// reference/ leaves, in a healthy state; it keeps no index, plan, mask or statistics.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/params.h"

namespace kvtier::cuda {

// Enqueues one swap-in on `stream`. Reads of `params`: shape, state.owner, state.lru, num_rows,
// row_to_request, topk, newest_slot, block_table, hot_indices, and the first layer.
//
// Requires what benchmarks have: contiguous rows, one row a request, regions in range, every row of
// the pool backed, top_k and hot_size small enough for the shared memory of a block (2048 and
// 16384 are). Errors: cudaErrorInvalidValue where that does not hold, as far as sizes tell.
cudaError_t DesignA(const SwapInParams& params, cudaStream_t stream);

}  // namespace kvtier::cuda
