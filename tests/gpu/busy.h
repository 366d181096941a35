// Something for a GPU to do meanwhile.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace kvtier::testing {

// Every multiprocessor computes for about `microseconds`, with warps to spare for others.
cudaError_t KeepBusy(int64_t microseconds, cudaStream_t stream);

}  // namespace kvtier::testing
