// How many bits are set before each word of a bit array: a scan over a block.
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

// before[i] = bits set in words[0, i) for i in [0, count]; so before[count] is the total.
// words [count], before [count + 1], warp_sums [32] in shared or device memory.
//
// All threads of the block, any number of warps: only sums that a warp has written are read.
// Begins with a barrier (words may just have been written) and ends with one. Cost: three
// barriers and ten shuffles for each blockDim.x words.
__device__ inline void CountBitsBefore(const uint32_t* words, int32_t count, int32_t* before,
                                       int32_t* warp_sums) {
  int32_t carry = 0;
  for (int32_t first = 0; first < count || first == 0; first += ThreadCount()) {
    __syncthreads();
    const int32_t i = first + Thread();
    const int32_t bits = i < count ? __popc(words[i]) : 0;
    const int32_t sum = InclusiveWarpSum(bits);
    if (Lane() == kWarpThreads - 1) warp_sums[Warp()] = sum;
    __syncthreads();
    if (Warp() == 0) {
      const int32_t of_warp = Lane() < WarpCount() ? warp_sums[Lane()] : 0;
      const int32_t sum_of_warps = InclusiveWarpSum(of_warp);
      if (Lane() < WarpCount()) warp_sums[Lane()] = sum_of_warps;
    }
    __syncthreads();
    const int32_t of_earlier_warps = Warp() > 0 ? warp_sums[Warp() - 1] : 0;
    if (i < count) before[i] = carry + of_earlier_warps + sum - bits;
    carry += warp_sums[WarpCount() - 1];
  }
  if (Thread() == 0) before[count] = carry;
  __syncthreads();
}

}  // namespace kvtier::cuda
