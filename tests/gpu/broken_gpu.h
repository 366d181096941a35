// What makes a GPU useless to this process, and to no other.
#pragma once

namespace kvtier::testing {

// A kernel writes where nothing is: this process's context on the first device is lost, as whoever
// calls CUDA next is told. Null, or what went wrong. Returns when the kernel has ended.
const char* WriteNowhere();

// A kernel that takes every place for threads that the first device has.
class GreedyKernel {
 public:
  // Enqueues it; it keeps them until LetGo(), and for a minute at most. Null, or what CUDA says.
  const char* Start();
  void LetGo();

 private:
  volatile int* let_go_ = nullptr;  // host memory that the GPU reads
};

}  // namespace kvtier::testing
