// cudaError_t as absl::Status, and the current device for a scope. Internal to client/cuda.
#pragma once

#include <cuda_runtime_api.h>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace kvtier::client {

// OK, RESOURCE_EXHAUSTED / DEVICE_MEMORY_EXHAUSTED, or INTERNAL / DEVICE_ERROR; metadata
// device_error is CUDA's name. Clears the thread's pending error, so that it does not surface in
// an unrelated call of the engine's.
absl::Status CudaStatus(cudaError_t error, absl::string_view what);

// Makes a device current, and the thread's former one again.
class ScopedDevice {
 public:
  explicit ScopedDevice(int ordinal);
  ~ScopedDevice();
  ScopedDevice(const ScopedDevice&) = delete;
  ScopedDevice& operator=(const ScopedDevice&) = delete;

 private:
  int former_ = -1;  // none to go back to
};

}  // namespace kvtier::client
