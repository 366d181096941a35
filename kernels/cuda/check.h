// Arguments that no launch can serve. Private to this folder.
//
// The host sees sizes and pointers, not what they point to: values in device memory are checked
// by the kernels. cudaSuccess or cudaErrorInvalidValue; nothing is enqueued, nothing touched.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/launch.h"
#include "kernels/params.h"

namespace kvtier::cuda {

cudaError_t CheckSwapIn(const SwapInParams& params, const void* workspace,
                        const LaunchOptions& options);
cudaError_t CheckReplayPlan(const ReplayPlanParams& params, const LaunchOptions& options);
cudaError_t CheckBackup(const BackupParams& params);
cudaError_t CheckInvalidate(const InvalidateParams& params, const void* workspace);
cudaError_t CheckResetRegion(const ResetRegionParams& params);

}  // namespace kvtier::cuda
