// Words that all kernels of this folder use: warps, lanes, shared and raced memory.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/params.h"

namespace kvtier::cuda {

inline constexpr int32_t kWarpThreads = 32;
inline constexpr int32_t kBlockThreadsMax = 1024;
inline constexpr uint32_t kAllLanes = 0xffffffffu;

__device__ inline int32_t Lane() { return static_cast<int32_t>(threadIdx.x % kWarpThreads); }
__device__ inline int32_t Warp() { return static_cast<int32_t>(threadIdx.x / kWarpThreads); }
__device__ inline int32_t WarpCount() { return static_cast<int32_t>(blockDim.x / kWarpThreads); }
__device__ inline int32_t Thread() { return static_cast<int32_t>(threadIdx.x); }
__device__ inline int32_t ThreadCount() { return static_cast<int32_t>(blockDim.x); }

// The lanes before this one, as bits.
__device__ inline uint32_t LanesBelow() { return (1u << Lane()) - 1; }

// Memory that kernels of other processes may write at the same time (owners, orders,
// generations): one access each, never torn, repeated or moved by the compiler.
template <typename T>
__device__ inline T LoadRelaxed(const T* from) {
  return *static_cast<const volatile T*>(from);
}
template <typename T>
__device__ inline void StoreRelaxed(T* to, T value) {
  *static_cast<volatile T*>(to) = value;
}

// Dynamic shared memory of the block, 16-byte aligned.
__device__ inline uint8_t* SharedBytes() {
  extern __shared__ uint4 shared_memory[];
  return reinterpret_cast<uint8_t*>(shared_memory);
}

// Rows that take part in this call. The number lies in device memory so that a captured graph
// reads the value of its replay.
__device__ inline int32_t RealRowCount(const int32_t* num_real_rows, int32_t num_rows) {
  if (num_real_rows == nullptr) return num_rows;
  return min(max(*num_real_rows, 0), num_rows);
}

}  // namespace kvtier::cuda
