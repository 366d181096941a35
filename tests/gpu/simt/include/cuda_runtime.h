// CUDA C++ as the kernels use it, on the simulated GPU of tests/gpu/simt/simt.h.
//
// What is not here is not simulated: a kernel that uses more does not compile. Intrinsics have
// CUDA's names and, where misuse can be seen, complain about it.
#pragma once

#include <algorithm>
#include <bit>
#include <tuple>
#include <utility>

#include "cuda_runtime_api.h"
#include "tests/gpu/simt/simt.h"

#define __host__
#define __device__
#define __global__
#define __shared__
#define __grid_constant__
#define __noinline__
#define __launch_bounds__(...)
// This is no GPU, but one that is simulated.
#define KVTIER_SIMULATED_GPU 1

struct uint3 {
  unsigned x, y, z;
};
struct dim3 {
  explicit dim3(unsigned x_count = 1) : x(x_count) {}
  unsigned x, y = 1, z = 1;
};
struct alignas(8) uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};
inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w) { return {x, y, z, w}; }

// Of the thread that runs.
inline uint3 threadIdx, blockIdx;
inline dim3 blockDim, gridDim;

using std::max;
using std::min;

// --- Barriers and warps ------------------------------------------------------

#define KVTIER_WHERE const simt::Place& where = simt::Place::Here()

inline void __syncthreads(KVTIER_WHERE) { simt::BlockBarrier(0, where); }
inline int __syncthreads_count(int predicate, KVTIER_WHERE) {
  return static_cast<int>(simt::BlockBarrier(predicate != 0 ? 1 : 0, where));
}
inline int __syncthreads_or(int predicate, KVTIER_WHERE) {
  return __syncthreads_count(predicate, where) > 0 ? 1 : 0;
}
inline int __syncthreads_and(int predicate, KVTIER_WHERE) {
  return __syncthreads_count(predicate == 0, where) == 0 ? 1 : 0;
}
inline void __syncwarp(KVTIER_WHERE) { simt::Exchange(0, where); }
inline unsigned __ballot_sync(unsigned mask, int predicate, KVTIER_WHERE) {
  simt::RequireAllLanes(mask, where);
  const uint64_t* values = simt::Exchange(predicate != 0 ? 1 : 0, where);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) bits |= static_cast<unsigned>(values[lane]) << lane;
  return bits;
}
inline int __any_sync(unsigned mask, int predicate, KVTIER_WHERE) {
  return __ballot_sync(mask, predicate, where) != 0 ? 1 : 0;
}
template <typename T>
T __shfl_sync(unsigned mask, T value, int lane, KVTIER_WHERE) {
  simt::RequireAllLanes(mask, where);
  simt::Require(lane >= 0 && lane < 32, "shuffle from no lane", where);
  return static_cast<T>(simt::Exchange(static_cast<uint64_t>(value), where)[lane]);
}
template <typename T>
T __shfl_up_sync(unsigned mask, T value, unsigned delta, KVTIER_WHERE) {
  simt::RequireAllLanes(mask, where);
  const unsigned lane = threadIdx.x % 32;
  const uint64_t* values = simt::Exchange(static_cast<uint64_t>(value), where);
  return static_cast<T>(values[lane >= delta ? lane - delta : lane]);
}

inline unsigned __reduce_add_sync(unsigned mask, unsigned value, KVTIER_WHERE) {
  simt::RequireAllLanes(mask, where);
  const uint64_t* values = simt::Exchange(value, where);
  unsigned sum = 0;
  for (unsigned lane = 0; lane < 32; ++lane) sum += static_cast<unsigned>(values[lane]);
  return sum;
}

inline unsigned __reduce_or_sync(unsigned mask, unsigned value, KVTIER_WHERE) {
  simt::RequireAllLanes(mask, where);
  const uint64_t* values = simt::Exchange(value, where);
  unsigned bits = 0;
  for (unsigned lane = 0; lane < 32; ++lane) bits |= static_cast<unsigned>(values[lane]);
  return bits;
}

// --- Memory ------------------------------------------------------------------
// Threads take turns and give the turn up at barriers alone, so that plain code is atomic.

inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) {}

template <typename T>
T atomicExch(T* at, T value) {
  return std::exchange(*at, value);
}
template <typename T>
T atomicAdd(T* at, T value) {
  return std::exchange(*at, static_cast<T>(*at + value));
}
template <typename T>
T atomicMin(T* at, T value) {
  return std::exchange(*at, std::min(*at, value));
}
template <typename T>
T atomicMax(T* at, T value) {
  return std::exchange(*at, std::max(*at, value));
}
template <typename T>
T atomicOr(T* at, T value) {
  return std::exchange(*at, *at | value);
}
template <typename T>
T atomicCAS(T* at, T expected, T value) {
  return *at == expected ? std::exchange(*at, value) : *at;
}
template <typename T>
T atomicAdd_system(T* at, T value) {
  return atomicAdd(at, value);
}
template <typename T>
T atomicCAS_system(T* at, T expected, T value) {
  return atomicCAS(at, expected, value);
}

// --- Bits --------------------------------------------------------------------

inline int __popc(unsigned bits) { return std::popcount(bits); }
inline int __ffs(unsigned bits) { return bits == 0 ? 0 : std::countr_zero(bits) + 1; }
inline int __clz(int bits) { return std::countl_zero(static_cast<unsigned>(bits)); }

// The smaller of each 16-bit half.
inline unsigned __vminu2(unsigned a, unsigned b) {
  return std::min(a >> 16, b >> 16) << 16 | std::min(a & 0xffff, b & 0xffff);
}

// --- Launches ----------------------------------------------------------------

enum cudaLaunchAttributeID {
  cudaLaunchAttributeClusterDimension = 4,
  cudaLaunchAttributeProgrammaticStreamSerialization = 6,
};
struct cudaLaunchAttribute {
  cudaLaunchAttributeID id;
  struct {
    struct {
      unsigned x, y, z;
    } clusterDim;
    int programmaticStreamSerializationAllowed;
  } val;
};
struct cudaLaunchConfig_t {
  dim3 gridDim = dim3(), blockDim = dim3();
  size_t dynamicSmemBytes = 0;
  cudaStream_t stream = nullptr;
  cudaLaunchAttribute* attrs = nullptr;
  unsigned numAttrs = 0;
};

// Runs the kernel at once, to its end. Kernels that may overlap don't, and where the GPU has no
// clusters a launch that asks for either is refused.
template <typename... Parameters, typename... Arguments>
cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t* config, void (*kernel)(Parameters...),
                               Arguments&&... arguments) {
  static_assert((sizeof(Parameters) + ... + 0) <= 32764, "more than a kernel's parameters may be");
  if (config->numAttrs != 0 && !simt::CurrentGpu().has_clusters) return cudaErrorInvalidValue;
  unsigned cluster = 1;
  for (unsigned i = 0; i < config->numAttrs; ++i) {
    const cudaLaunchAttribute& attribute = config->attrs[i];
    if (attribute.id == cudaLaunchAttributeClusterDimension) cluster = attribute.val.clusterDim.x;
  }
  const std::tuple<Parameters...> parameters(std::forward<Arguments>(arguments)...);
  const simt::Grid grid = {config->gridDim.x, config->blockDim.x, config->dynamicSmemBytes,
                           cluster};
  const bool ran = simt::Run(grid, [&] { std::apply(kernel, parameters); });
  return ran ? cudaSuccess : cudaErrorInvalidValue;
}
