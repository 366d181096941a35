// Which backend a daemon gets.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/device/backend.h"

namespace kvtier {

struct BackendOptions {
  int cpu_threads = 1;  // of each device stream of the CPU backend
  // How workers map the memory of a GPU.
  MemoryHandle::Transport gpu_memory = MemoryHandle::Transport::kCudaFd;
};

struct ChosenBackend {
  std::unique_ptr<DeviceBackend> backend;
  std::string note;  // which, and why, in one line
};

// `name`: "auto" (GPUs if there are any, else the CPU), "cpu", "cuda". Errors: FIELD_INVALID; for
// "cuda" FAILED_PRECONDITION / DEVICE_UNKNOWN without a driver or a GPU, UNIMPLEMENTED /
// NOT_IMPLEMENTED in a build without it. Call it before other threads run (see cuda_backend.h).
absl::StatusOr<ChosenBackend> MakeBackend(absl::string_view name, const BackendOptions& options);

}  // namespace kvtier
