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

}  // namespace kvtier::client
