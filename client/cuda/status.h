// cudaError_t as absl::Status, and the current context for a scope. Internal to client/cuda.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "client/cuda/driver.h"

namespace kvtier::client {

// OK, RESOURCE_EXHAUSTED / DEVICE_MEMORY_EXHAUSTED, or INTERNAL / DEVICE_ERROR; metadata
// device_error is CUDA's name. Clears the thread's pending error, so that it does not surface in
// an unrelated call of the engine's.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// Makes a context current for a scope, and what was current before it again. Not cudaSetDevice: to
// give the former device back, that would make a context on it.
class ScopedContext {
 public:
  ScopedContext(const Driver& driver, CUcontext context)
      : driver_(driver), current_(driver.context_push(context) == CUDA_SUCCESS) {}
  ~ScopedContext() {
    CUcontext ignored = nullptr;
    if (current_) (void)driver_.context_pop(&ignored);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

 private:
  const Driver& driver_;
  const bool current_;
};

}  // namespace kvtier::client
