// kvtier::cuda on a GPU, for tests that take an implementation: every call mirrors its arrays.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kernels/testing/implementation.h"

namespace kvtier::testing {

struct CudaOptions {
  std::string name;
  int32_t threads = 1024;  // of a resolving block
  int32_t copying_blocks = 0;
  int32_t cluster = 0;  // blocks that share a row
  // Calls are captured once and replayed with what the arrays hold at each replay.
  bool graph = false;
  // Generations lie in pinned host memory, where a daemon writes them, not on the device.
  bool generations_in_host_memory = false;
};

// "", or why there is no GPU to run on.
std::string WhyNoGpu();

// Takes no GPU before the first call. Ends the process on a CUDA error, on a refused call, if a
// kernel writes where it must not, or leaves a workspace header that isn't zero.
Implementation Cuda(const CudaOptions& options);

// Both ways to launch.
std::vector<Implementation> CudaImplementations();

}  // namespace kvtier::testing
