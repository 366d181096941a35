// Host memory that GPUs shall reach: remembered until a GPU is in use, then registered with the
// driver. A daemon that nobody uses a GPU of has no context, and so nothing to register with.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/mutex.h"
#include "server/device/backend.h"
#include "server/device/cuda/cuda_device.h"

namespace kvtier {

// Thread-safe. Calls wait for each other and for the driver: 20 ms a GiB of 2 MiB pages.
class HostRegistry : public std::enable_shared_from_this<HostRegistry> {
 public:
  // [data, data + bytes), until what it returns is destroyed, which may be after the backend.
  // Errors: FIELD_INVALID for an empty range; DEVICE_ERROR for one that overlaps another;
  // RESOURCE_EXHAUSTED / LIMIT_REACHED where the driver refuses it, DEVICE_LOST, DRAINING.
  absl::StatusOr<std::unique_ptr<HostRegistration>> Add(uint8_t* data, int64_t bytes);

  // `device` has a context and is in use from now on: what is there is registered, what comes is
  // registered at once, for all GPUs. On an error none of what was only remembered is.
  absl::Status Activate(const std::shared_ptr<CudaDevice>& device);

  // As DeviceBackend::StopRegistering.
  void Stop() { stopped_.store(true, std::memory_order_relaxed); }

 private:
  friend class CudaHostRegistration;
  struct Range {
    int64_t bytes = 0;
    bool registered = false;
  };
  using Ranges = std::map<uintptr_t, Range>;  // by address

  absl::Status Register(uintptr_t address, Range* range) KVTIER_REQUIRES(mutex_);
  void Unregister(uintptr_t address, Range* range) KVTIER_REQUIRES(mutex_);
  void Remove(uintptr_t address);

  std::atomic<bool> stopped_{false};

  // Held over the driver's calls: a range must be registered once, and whoever uses a device waits
  // until all is. Attaches, detaches and the start of the pool take it; Health, streams and
  // memory never do. rank: above all others of a backend.
  Mutex mutex_;
  Ranges ranges_ KVTIER_GUARDED_BY(mutex_);
  std::shared_ptr<CudaDevice> device_ KVTIER_GUARDED_BY(mutex_);  // the first in use
};

}  // namespace kvtier
