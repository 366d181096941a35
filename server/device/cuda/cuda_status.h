// CUDA errors as absl::Status, and the one that never ends.
#pragma once

#include <cuda_runtime_api.h>

#include <atomic>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvtier {

// Does `error` mean that the context is gone, and that every later call fails?
bool IsContextLost(cudaError_t error);

// OK, or INTERNAL / DEVICE_ERROR with device_uuid and device_error (the name that CUDA gives it).
// Clears the pending error of this thread, lest it surface in an unrelated call.
absl::Status CudaError(cudaError_t error, absl::string_view what, absl::string_view device_uuid);

// Whether the GPUs of a backend are well. A lost context cannot be had back in this process, so
// the first loss is for good, and for all of them. Thread-safe; never waits.
class CudaHealth {
 public:
  void Lose(cudaError_t error);
  // OK, or UNAVAILABLE / DEVICE_LOST.
  absl::Status status() const;

 private:
  std::atomic<cudaError_t> error_{cudaSuccess};
};

}  // namespace kvtier
