// What makes a GPU useless to this process, and to no other.
#pragma once

#include <cuda_runtime_api.h>

namespace kvtier::testing {

// A kernel writes where nothing is: this process's context on the first device is lost, as whoever
// calls CUDA next is told. Null, or what went wrong. Returns when the kernel has ended.
const char* WriteNowhere();

// A kernel that takes every place for threads that the first device has.
class GreedyKernel {
 public:
  // Enqueues it; it keeps them until LetGo(), and for 20 s at most. Null, or what CUDA says.
  const char* Start();
  // Returns when it has ended.
  void LetGo();

 private:
  void* flag_ = nullptr;  // host memory that the GPU reads
  cudaStream_t stream_ = nullptr;
};

}  // namespace kvtier::testing
