// NVIDIA GPUs as devices.
//
//   auto backend = MakeCudaBackend({});
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "server/device/backend.h"

namespace kvtier {

struct CudaBackendOptions {
  // How workers map device memory: kCudaFd works across PID and IPC namespaces; kCudaIpc needs
  // both shared, and serves workers whose framework knows legacy handles alone.
  MemoryHandle::Transport transport = MemoryHandle::Transport::kCudaFd;
};

// Memory, streams and registrations may outlive the backend.
//
// An idle backend has no context on any GPU and no host memory registered: both come with the first
// allocation or device stream, and the context stays until the process ends. A lost context (an
// illegal address, say) cannot be had back: Health says so from then on, and every call fails.
//
// Call it before other threads run. Where the environment does not say otherwise, it sets
// CUDA_MODULE_LOADING=EAGER (a kernel that is first loaded when it is launched may find no memory
// for it, in the middle of a step) and CUDA_DEVICE_MAX_CONNECTIONS=32 (device streams that share
// one connection wait for each other).
//
// Errors: FAILED_PRECONDITION / DEVICE_UNKNOWN without a driver or a GPU, in one line;
// UNIMPLEMENTED / NOT_IMPLEMENTED in a build without CUDA.
absl::StatusOr<std::unique_ptr<DeviceBackend>> MakeCudaBackend(const CudaBackendOptions& options);

}  // namespace kvtier
