// The least that a swap-in or a backup must do: rows, and nothing else. What benchmarks compare
// with; also an empty kernel.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtier::testing {

// Rows of `row_bytes` (a multiple of 16), one warp a row, all loads of a lane before its stores:
// row i of `dense` (device memory) is row slots[i] of `pool` (mapped host memory).
struct RowCopy {
  uint8_t* dense = nullptr;
  uint8_t* pool = nullptr;
  const int32_t* slots = nullptr;  // [count], device memory
  int32_t count = 0;
  int32_t row_bytes = 0;
};

// Enqueue on `stream`; `blocks` of 512 threads share the rows.
cudaError_t GatherRows(const RowCopy& copy, int32_t blocks, cudaStream_t stream);
cudaError_t ScatterRows(const RowCopy& copy, int32_t blocks, cudaStream_t stream);
cudaError_t DoNothing(cudaStream_t stream);

}  // namespace kvtier::testing
