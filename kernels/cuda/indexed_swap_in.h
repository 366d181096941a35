// A swap-in in one kernel, for calls whose requests have one row each and an index.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/indexed_tables.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/tables.cuh"
#include "kernels/params.h"

namespace kvtier::cuda {

// Layers that such a kernel copies by itself.
inline constexpr int32_t kLayersInKernel = 8;

// Rows of up to so many bytes may be read into registers before it is known where they go.
inline constexpr int32_t kRowBytesInFlightMax = 1024;

struct IndexedSwapInArgs {
  SwapInParams p;  // its layers come beside it
  StepPlan plan;
  bool writes_plan;  // else only a step that Resolver does may write it
  IndexedTables tables;
  TableSizes general_sizes;  // what Resolver needs, in shared memory
  int64_t general_small_bytes;
  int64_t bytes_per_row;   // over all layers of the call
  int32_t block_shift;     // log2 of the block size, kNone: it is no power of two
  int32_t cluster_shift;   // log2 of the blocks of a row
  int32_t copying_blocks;  // of those, the first by their turns
  int32_t early_blocks;    // of those, the first that read rows before it is known where they go
  int32_t stage_bytes;     // of shared memory a warp for a second such row; 0: there is none
  bool sorts;              // rows are copied in the order of their addresses
  bool overlaps;           // the device lets kernels of a stream overlap at their ends
  bool lets_next_start;    // at once; else where nothing is missing
};

// Whether a call can be served so, given the shared memory of a block. Sets the bytes it takes.
bool CanUseIndex(const SwapInParams& params, const TableSizes& general_sizes, int32_t shared_max,
                 int64_t* shared_bytes);

// Whether the kernel that runs on the current device, one with clusters, knows of them:
// intermediate code for an older one does not.
bool IsBuiltForClusters();

// Enqueues the step with the copies of `layer_count` <= kLayersInKernel layers.
cudaError_t IndexedSwapIn(const IndexedSwapInArgs& args, const LayerView* layers,
                          int32_t layer_count, int32_t threads, int64_t shared_bytes,
                          cudaStream_t stream);

}  // namespace kvtier::cuda
