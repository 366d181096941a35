// The CUDA kernels: what a step does on a GPU, bit for bit as reference/ says it.
//
// Each function enqueues on `stream` and returns; none allocates, synchronizes, or decides
// anything from values in device memory, so every one can be captured in a CUDA graph and
// replayed with new inputs in the same buffers (num_real_rows lies in device memory). The
// parameter struct and the arrays `layers`, `sources`, `source_layouts` and `blocks` are host
// memory and are copied into the launch; every other pointer is read or written by the device
// and must live until the work is done. Host-pool pointers are those of memory registered with
// cudaHostRegister(..., mapped) in the calling process. `state` and `stats`, which are changed by
// atomics, lie in device memory: over PCIe a GPU has none on host memory.
//
// Errors: cudaErrorInvalidValue for arguments that no launch can serve, such as more than 32,768
// positions of one request (nothing is enqueued then), else what the launch returned. A pending
// error of an earlier call is neither returned nor cleared.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/params.h"

namespace kvtier::cuda {

// How a call is spread over the GPU: no choice changes a bit of its result.
struct LaunchOptions {
  int32_t threads = 1024;      // of a resolving block: a multiple of 32 up to 1024
  int32_t copying_blocks = 0;  // of 512 threads, at most; 0: one a multiprocessor
  // Blocks that share a row and copy its misses: 1, or on a device with clusters 2, 4 or 8; 0: as
  // the device likes.
  int32_t cluster = 0;
};

// Rows of one backup. (Ranks of newest rows are counted row by row.)
inline constexpr int32_t kBackupRowsMax = 1 << 24;

// Bytes of device scratch that calls on one stream with up to `num_rows` rows need; zeroed
// once after allocation, then left alone. Calls that share it must be ordered on one stream.
int64_t WorkspaceBytes(const GroupShape& shape, int32_t num_rows);

cudaError_t SwapIn(const SwapInParams& params, void* workspace, cudaStream_t stream,
                   const LaunchOptions& options = {});
cudaError_t ReplayPlan(const ReplayPlanParams& params, cudaStream_t stream,
                       const LaunchOptions& options = {});
cudaError_t Backup(const BackupParams& params, cudaStream_t stream);
cudaError_t Invalidate(const InvalidateParams& params, void* workspace, cudaStream_t stream);
cudaError_t ResetRegion(const ResetRegionParams& params, cudaStream_t stream);

}  // namespace kvtier::cuda
