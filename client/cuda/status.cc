#include "client/cuda/status.h"

#include "absl/strings/str_cat.h"
#include "client/error.h"

namespace kvtier::client {

absl::Status CudaStatus(cudaError_t error, absl::string_view what) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  const bool memory = error == cudaErrorMemoryAllocation;
  return MakeError(memory ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kInternal,
                   memory ? "DEVICE_MEMORY_EXHAUSTED" : "DEVICE_ERROR",
                   absl::StrCat(what, ": ", cudaGetErrorString(error)),
                   {{"device_error", cudaGetErrorName(error)}});
}

ScopedDevice::ScopedDevice(int ordinal) {
  int current = -1;
  if (cudaGetDevice(&current) != cudaSuccess || current == ordinal) return;
  if (cudaSetDevice(ordinal) == cudaSuccess) former_ = current;
}

ScopedDevice::~ScopedDevice() {
  if (former_ >= 0) (void)cudaSetDevice(former_);
}

}  // namespace kvtier::client
