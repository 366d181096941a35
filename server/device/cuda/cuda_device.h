// The GPUs of this process, and the one context it has on each.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/device/backend.h"
#include "server/device/cuda/cuda_driver.h"
#include "server/device/cuda/cuda_status.h"

namespace kvtier {

// Everything made on a GPU holds its CudaDevice, and so may outlive the backend. Thread-safe.
class CudaDevice {
 public:
  CudaDevice(DeviceInfo info, int ordinal, const CudaDriver& driver,
             std::shared_ptr<CudaHealth> health)
      : info_(std::move(info)), ordinal_(ordinal), driver_(driver), health_(std::move(health)) {}

  const DeviceInfo& info() const { return info_; }
  int ordinal() const { return ordinal_; }  // in this process
  const CudaDriver& driver() const { return driver_; }
  CudaHealth& health() const { return *health_; }

  // Makes the context, if it is not there yet: some hundred ms, and some hundred MiB of the GPU
  // until the process ends. Errors: DEVICE_MEMORY_EXHAUSTED, DEVICE_ERROR, DEVICE_LOST.
  absl::Status Activate();

  // What a call returned: OK, DEVICE_ERROR, or DEVICE_LOST, which Health() knows from then on.
  absl::Status Check(cudaError_t error, absl::string_view what) const;
  absl::Status Check(CUresult result, absl::string_view what) const {
    return Check(static_cast<cudaError_t>(result), what);
  }
  // The same for calls that take `bytes` of memory, which may be all in use:
  // RESOURCE_EXHAUSTED / DEVICE_MEMORY_EXHAUSTED. The context is current.
  absl::Status CheckMemory(cudaError_t error, absl::string_view purpose, int64_t bytes) const;
  absl::Status CheckMemory(CUresult result, absl::string_view purpose, int64_t bytes) const {
    return CheckMemory(static_cast<cudaError_t>(result), purpose, bytes);
  }
  absl::Status Exhausted(absl::string_view purpose, int64_t bytes, absl::string_view cause) const;

 private:
  friend class ScopedContext;

  const DeviceInfo info_;
  const int ordinal_;
  const CudaDriver driver_;
  const std::shared_ptr<CudaHealth> health_;
  // Never released: the runtime keeps state in it.
  std::atomic<CUcontext> context_{nullptr};
};

// Makes the context of a device current for a scope, and what was current before it again. Not
// cudaSetDevice: to give the former device back, that would make a context on it.
class ScopedContext {
 public:
  explicit ScopedContext(const CudaDevice& device);
  ~ScopedContext();
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

  // Is it current? Then what was made in it can be destroyed, even if the device is lost.
  bool current() const { return current_; }
  // OK, or why there is no use in calling anything but that: DEVICE_LOST, DEVICE_ERROR.
  absl::Status status() const;

 private:
  const CudaDevice& device_;
  cudaError_t error_ = cudaSuccess;
  bool current_ = false;
};

// Makes no context. Errors: FAILED_PRECONDITION / DEVICE_UNKNOWN in one line without a driver or
// a GPU.
absl::StatusOr<std::vector<std::shared_ptr<CudaDevice>>> FindCudaDevices(
    const std::shared_ptr<CudaHealth>& health);

}  // namespace kvtier
