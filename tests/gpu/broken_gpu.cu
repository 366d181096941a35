#include <cuda_runtime.h>

#include "tests/gpu/broken_gpu.h"

namespace kvtier::testing {
namespace {

constexpr int kThreads = 1024;
constexpr unsigned long long kNanosecondsMax = 60'000'000'000;

__device__ unsigned long long Nanoseconds() {
  unsigned long long now;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
  return now;
}

__global__ void WriteKernel(int* nowhere) { *nowhere = 1; }

__global__ void KeepKernel(const volatile int* released) {
  const unsigned long long begin = Nanoseconds();
  while (*released == 0 && Nanoseconds() - begin < kNanosecondsMax) __nanosleep(1000);
}

const char* TextOf(cudaError_t error) {
  return error == cudaSuccess ? nullptr : cudaGetErrorString(error);
}

}  // namespace

const char* WriteNowhere() {
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) return TextOf(error);
  WriteKernel<<<1, 1, 0, stream>>>(reinterpret_cast<int*>(64));
  error = cudaStreamSynchronize(stream);
  return error == cudaErrorIllegalAddress ? nullptr : "the bad kernel did no harm";
}

const char* GreedyKernel::Start() {
  int multiprocessors = 0, threads = 0;
  void* flag = nullptr;
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaHostAlloc(&flag, sizeof(int), cudaHostAllocMapped);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
  }
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerMultiProcessor, 0);
  }
  if (error == cudaSuccess) error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) return TextOf(error);
  let_go_ = static_cast<volatile int*>(flag);
  *let_go_ = 0;
  KeepKernel<<<multiprocessors*(threads / kThreads), kThreads, 0, stream>>>(
      static_cast<const volatile int*>(flag));
  return TextOf(cudaPeekAtLastError());
}

void GreedyKernel::LetGo() {
  if (let_go_ != nullptr) *let_go_ = 1;
}

}  // namespace kvtier::testing
