// Device memory that other processes can map: by descriptor, or by a legacy IPC handle.
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/device/backend.h"
#include "server/device/cuda/cuda_device.h"

namespace kvtier {

// `bytes` > 0 of zero-filled memory on `device`, which has a context. On an error nothing stays
// taken: RESOURCE_EXHAUSTED / DEVICE_MEMORY_EXHAUSTED, DEVICE_ERROR, DEVICE_LOST.

// Of cuMemCreate, exported as a descriptor: works across PID and IPC namespaces, and whoever holds
// the descriptor or a mapping keeps the memory.
absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateShareable(std::shared_ptr<CudaDevice> device,
                                                                absl::string_view purpose,
                                                                int64_t bytes);

// Of cudaMalloc, exported as a cudaIpcMemHandle_t.
absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateLegacy(std::shared_ptr<CudaDevice> device,
                                                             absl::string_view purpose,
                                                             int64_t bytes);

}  // namespace kvtier
