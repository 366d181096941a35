// A kernel that keeps a stream busy until it is released.
#pragma once

#include <cuda_runtime_api.h>

namespace kvtier::testing {

// Ends when *released is not 0 (mapped host memory), or after `seconds_max`.
cudaError_t Spin(const int* released, double seconds_max, cudaStream_t stream);

}  // namespace kvtier::testing
