#include <cuda_runtime.h>

#include "server/device/cuda/testing/spin.h"

namespace kvtier::testing {
namespace {

__device__ unsigned long long Nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void SpinKernel(const volatile int* released, unsigned long long nanoseconds_max) {
  const unsigned long long begin = Nanoseconds();
  while (*released == 0 && Nanoseconds() - begin < nanoseconds_max) __nanosleep(1000);
}

}  // namespace

cudaError_t Spin(const int* released, double seconds_max, cudaStream_t stream) {
  SpinKernel<<<1, 1, 0, stream>>>(released, static_cast<unsigned long long>(seconds_max * 1e9));
  return cudaPeekAtLastError();
}

}  // namespace kvtier::testing
