// Memory of the daemon's as this process's GPU reaches it. Internal to client/data_plane.
#pragma once

#include <cstdint>
#include <memory>

#include "client/data_plane/cuda/gpu.h"
#include "client/data_plane/device.h"

namespace kvtier::data_plane {

// GPU memory passed by file descriptor.
Error ImportFile(const Gpu& gpu, int32_t fd, int64_t size_bytes, std::unique_ptr<Mapping>* mapping);

// GPU memory passed by cudaIpcMemHandle_t. One process may open a handle only once.
Error OpenHandle(const Gpu& gpu, const void* handle, int64_t offset_bytes, int64_t size_bytes,
                 std::unique_ptr<Mapping>* mapping);

// Registers host memory with the driver, in chunks, for every GPU of the process.
Error Register(const Gpu& gpu, std::unique_ptr<Mapping> host, int64_t size_bytes, bool read_only,
               std::unique_ptr<Mapping>* mapping);

}  // namespace kvtier::data_plane
