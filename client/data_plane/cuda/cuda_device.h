// A GPU as the device of a plane. Internal to client/.
#pragma once

#include <memory>
#include <string>

#include "client/data_plane/device.h"

namespace kvtier::data_plane {

// The GPU of this UUID, "GPU-...", by whatever number this process knows it. Errors:
// FAILED_PRECONDITION / DEVICE_UNKNOWN (device_uuid, known) where there is none or no driver.
Error OpenCuda(const std::string& uuid, std::unique_ptr<Device>* device);

}  // namespace kvtier::data_plane
