#include <cuda_runtime.h>

#include "tests/gpu/row_copies.h"

namespace kvtier::testing {
namespace {

constexpr int32_t kThreads = 512;
constexpr int32_t kLanes = 32;
constexpr int32_t kInFlight = 4;  // loads of a lane before its first store

template <bool kToPool>
__global__ void __launch_bounds__(kThreads) CopyRowsKernel(const RowCopy c) {
  const auto lane = static_cast<int32_t>(threadIdx.x % kLanes);
  const auto warps = static_cast<int32_t>(gridDim.x * kThreads / kLanes);
  const int32_t vectors = c.row_bytes / 16;
  for (auto i = static_cast<int32_t>((blockIdx.x * kThreads + threadIdx.x) / kLanes); i < c.count;
       i += warps) {
    auto* const dense = reinterpret_cast<uint4*>(c.dense + int64_t{i} * c.row_bytes);
    auto* const pool = reinterpret_cast<uint4*>(c.pool + int64_t{c.slots[i]} * c.row_bytes);
    uint4* const to = kToPool ? pool : dense;
    const uint4* const from = kToPool ? dense : pool;
    for (int32_t first = lane; first < vectors; first += kInFlight * kLanes) {
      uint4 values[kInFlight];
#pragma unroll
      for (int32_t k = 0; k < kInFlight; ++k) {
        if (first + k * kLanes < vectors) values[k] = from[first + k * kLanes];
      }
#pragma unroll
      for (int32_t k = 0; k < kInFlight; ++k) {
        if (first + k * kLanes < vectors) to[first + k * kLanes] = values[k];
      }
    }
  }
}

__global__ void NothingKernel() {}

template <typename... Parameters, typename... Arguments>
cudaError_t Launch(void (*kernel)(Parameters...), int32_t blocks, int32_t threads,
                   cudaStream_t stream, const Arguments&... arguments) {
  cudaLaunchConfig_t config = {};
  config.gridDim = dim3(static_cast<unsigned>(blocks));
  config.blockDim = dim3(static_cast<unsigned>(threads));
  config.stream = stream;
  return cudaLaunchKernelEx(&config, kernel, arguments...);
}

}  // namespace

cudaError_t GatherRows(const RowCopy& copy, int32_t blocks, cudaStream_t stream) {
  return Launch(CopyRowsKernel<false>, blocks, kThreads, stream, copy);
}

cudaError_t ScatterRows(const RowCopy& copy, int32_t blocks, cudaStream_t stream) {
  return Launch(CopyRowsKernel<true>, blocks, kThreads, stream, copy);
}

cudaError_t DoNothing(cudaStream_t stream) { return Launch(NothingKernel, 1, 32, stream); }

}  // namespace kvtier::testing
