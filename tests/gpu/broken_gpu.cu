#include <cuda_runtime.h>

#include "tests/gpu/broken_gpu.h"

namespace kvtier::testing {
namespace {

constexpr int kThreads = 1024;
constexpr unsigned long long kNanosecondsMax = 20'000'000'000;

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
  cudaError_t error = cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0);
  if (error == cudaSuccess) {
    error = cudaDeviceGetAttribute(&threads, cudaDevAttrMaxThreadsPerMultiProcessor, 0);
  }
  if (error == cudaSuccess && stream_ == nullptr) {
    error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  }
  if (error == cudaSuccess && flag_ == nullptr) {
    error = cudaHostAlloc(&flag_, sizeof(int), cudaHostAllocMapped);
  }
  if (error != cudaSuccess) return TextOf(error);
  *static_cast<volatile int*>(flag_) = 0;
  KeepKernel<<<multiprocessors*(threads / kThreads), kThreads, 0, stream_>>>(
      static_cast<const volatile int*>(flag_));
  return TextOf(cudaPeekAtLastError());
}

void GreedyKernel::LetGo() {
  if (flag_ == nullptr) return;
  *static_cast<volatile int*>(flag_) = 1;
  (void)cudaStreamSynchronize(stream_);
}

}  // namespace kvtier::testing
