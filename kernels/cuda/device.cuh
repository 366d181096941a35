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

// --- What Ampere and Hopper add. Elsewhere, as in the tests' simulated GPU, each does the same in
// a plain way.

// Starts to copy kBytes (4 or 16, and both sides aligned to it) into shared memory. The thread's
// copies have arrived behind WaitForCopies(), everybody's behind the barrier that follows it.
template <int32_t kBytes>
__device__ inline void CopyAsync(void* to_shared, const void* from) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(to_shared));
  if constexpr (kBytes == 16) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
  } else {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
  }
#else
  if constexpr (kBytes == 16) {
    *static_cast<uint4*>(to_shared) = *static_cast<const uint4*>(from);
  } else {
    *static_cast<uint32_t*>(to_shared) = LoadRelaxed(static_cast<const uint32_t*>(from));
  }
#endif
}
__device__ inline void WaitForCopies() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  asm volatile("cp.async.wait_all;" ::: "memory");
#endif
}

// Whole arrays into shared memory, by one thread: all sizes and addresses are multiples of 16, and
// `barrier` is an 8-byte word of shared memory that counts the bytes. Only where kHasBulkCopies.
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
inline constexpr bool kHasBulkCopies = true;
__device__ inline void InitBulkBarrier(uint64_t* barrier) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(at) : "memory");
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
__device__ inline void ExpectBulkBytes(uint64_t* barrier, int32_t bytes) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile("mbarrier.arrive.expect_tx.shared.b64 _, [%0], %1;" ::"r"(at), "r"(bytes)
               : "memory");
}
__device__ inline void CopyBulkAsync(void* to_shared, const void* from, int32_t bytes,
                                     uint64_t* barrier) {
  const auto to = static_cast<uint32_t>(__cvta_generic_to_shared(to_shared));
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(to),
      "l"(from), "r"(bytes), "r"(at)
      : "memory");
}
// All threads that read what was copied.
__device__ inline void WaitForBulkCopies(uint64_t* barrier) {
  const auto at = static_cast<uint32_t>(__cvta_generic_to_shared(barrier));
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], 0;\n"
      "@!done bra again;\n"
      "}\n" ::"r"(at)
      : "memory");
}
#else
inline constexpr bool kHasBulkCopies = false;
__device__ inline void InitBulkBarrier(uint64_t*) {}
__device__ inline void ExpectBulkBytes(uint64_t*, int32_t) {}
__device__ inline void CopyBulkAsync(void*, const void*, int32_t, uint64_t*) {}
__device__ inline void WaitForBulkCopies(uint64_t*) {}
#endif

// The barrier of a cluster, in halves: what a thread did before it arrives has happened for those
// that have waited. Threads that have left the kernel count as arrived. All threads of the block.
__device__ inline void ArriveAtCluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
#elif defined(KVTIER_SIMULATED_GPU)
  simt::ArriveAtCluster(simt::Place::Here());
#endif
}
__device__ inline void WaitForCluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
#elif defined(KVTIER_SIMULATED_GPU)
  simt::WaitForCluster(simt::Place::Here());
#endif
}

// The first half for a warp that has nothing to tell, or of which a lane has fenced what its block
// did before: writes are not waited for. All lanes of the warp.
__device__ inline void ArriveFencedAtCluster() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#elif defined(KVTIER_SIMULATED_GPU)
  simt::ArriveAtCluster(simt::Place::Here());
#endif
}

// A word of the cluster's first block, at the place where this block has `shared`.
__device__ inline int32_t LoadFromFirstBlock(const int32_t* shared) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto mine = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
  uint32_t its;
  int32_t value;
  asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(its) : "r"(mine));
  asm volatile("ld.shared::cluster.s32 %0, [%1];" : "=r"(value) : "r"(its) : "memory");
  return value;
#elif defined(KVTIER_SIMULATED_GPU)
  return *static_cast<const int32_t*>(simt::OfFirstBlock(shared, simt::Place::Here()));
#else
  return *shared;
#endif
}

// What other processors wrote before what this thread has read is seen by what it, and whoever
// waits for it at a barrier, reads from now on.
__device__ inline void AcquireFromSystem() {
#if defined(__CUDA_ARCH__)
  asm volatile("fence.acq_rel.sys;" ::: "memory");
#endif
}

// What this thread, and whoever it has waited for at a barrier, wrote before is seen by other
// processors that see what it, or whoever waits for it at a barrier, writes from now on.
__device__ inline void ReleaseToSystem() { AcquireFromSystem(); }

// Kernels of one stream may overlap at their ends: the next one's blocks may start once all of
// this one's have said so, and wait for its end before they read what it wrote.
__device__ inline void LetNextKernelStart() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
__device__ inline void WaitForPreviousKernel() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Rows that take part in this call. The number lies in device memory so that a captured graph
// reads the value of its replay.
__device__ inline int32_t RealRowCount(const int32_t* num_real_rows, int32_t num_rows) {
  if (num_real_rows == nullptr) return num_rows;
  return min(max(*num_real_rows, 0), num_rows);
}

}  // namespace kvtier::cuda
