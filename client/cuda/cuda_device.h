// A GPU as a device. Internal to client/.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "client/device.h"

namespace kvtier::client {

// The GPU of this UUID, "GPU-...", by whatever number this process knows it. Errors:
// FAILED_PRECONDITION / DEVICE_UNKNOWN (device_uuid, known) where there is none or no driver.
absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::string& uuid);

}  // namespace kvtier::client
