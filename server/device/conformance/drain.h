// Waiting for a device stream, in tests.
#pragma once

#include "absl/status/status.h"
#include "server/device/backend.h"

namespace kvtier {

// Returns when all that was enqueued is done, with what its Notify reports.
absl::Status Drain(DeviceStream& stream);

}  // namespace kvtier
