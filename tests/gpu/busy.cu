#include "tests/gpu/busy.h"

namespace kvtier::testing {
namespace {

constexpr int kThreads = 512;

__device__ int64_t Now() {
  int64_t now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
  return now;
}

__global__ void Compute(int64_t nanoseconds) {
  const int64_t end = Now() + nanoseconds;
  float x = static_cast<float>(threadIdx.x);
  while (Now() < end) {
    for (int i = 0; i < 64; ++i) x = x * 1.0001f + 0.5f;
  }
  // Never true; the compiler does not know.
  if (x == -1.0f) __trap();
}

}  // namespace

cudaError_t KeepBusy(int64_t microseconds, cudaStream_t stream) {
  int device = 0, processors = 0;
  cudaError_t error = cudaGetDevice(&device);
  if (error != cudaSuccess) return error;
  error = cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device);
  if (error != cudaSuccess) return error;
  Compute<<<processors, kThreads, 0, stream>>>(microseconds * 1000);
  return cudaGetLastError();
}

}  // namespace kvtier::testing
