// Sums of what comes before each element of an array: a scan over a block.
#pragma once

#include "kernels/cuda/device.cuh"

namespace kvtier::cuda {

// The sum of `value` over this lane and those before it. All lanes of the warp.
__device__ inline int32_t InclusiveWarpSum(int32_t value) {
  for (int32_t step = 1; step < kWarpThreads; step *= 2) {
    const int32_t other = __shfl_up_sync(kAllLanes, value, step);
    if (Lane() >= step) value += other;
  }
  return value;
}

// before[i] = the sum of value_of(j) for j in [0, i), for i in [0, count]; so before[count] is the
// total. before [count + 1], warp_sums [32] in shared or device memory; value_of(i) may be
// before[i] as it was.
//
// All threads of the block, any number of warps: only sums that a warp has written are read.
// Begins with a barrier (values may just have been written) and ends with one. Cost: three
// barriers and ten shuffles for each blockDim.x values.
template <typename ValueOf>
__device__ inline void SumsBefore(const ValueOf& value_of, int32_t count, int32_t* before,
                                  int32_t* warp_sums) {
  int32_t carry = 0;
  for (int32_t first = 0; first < count || first == 0; first += ThreadCount()) {
    __syncthreads();
    const int32_t i = first + Thread();
    const int32_t value = i < count ? value_of(i) : 0;
    const int32_t sum = InclusiveWarpSum(value);
    if (Lane() == kWarpThreads - 1) warp_sums[Warp()] = sum;
    __syncthreads();
    if (Warp() == 0) {
      const int32_t of_warp = Lane() < WarpCount() ? warp_sums[Lane()] : 0;
      const int32_t sum_of_warps = InclusiveWarpSum(of_warp);
      if (Lane() < WarpCount()) warp_sums[Lane()] = sum_of_warps;
    }
    __syncthreads();
    const int32_t of_earlier_warps = Warp() > 0 ? warp_sums[Warp() - 1] : 0;
    if (i < count) before[i] = carry + of_earlier_warps + sum - value;
    carry += warp_sums[WarpCount() - 1];
  }
  if (Thread() == 0) before[count] = carry;
  __syncthreads();
}

// The same of the bits set in words [count].
__device__ inline void CountBitsBefore(const uint32_t* words, int32_t count, int32_t* before,
                                       int32_t* warp_sums) {
  SumsBefore([words](int32_t i) { return __popc(words[i]); }, count, before, warp_sums);
}

}  // namespace kvtier::cuda
