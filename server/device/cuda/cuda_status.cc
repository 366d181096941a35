#include "server/device/cuda/cuda_status.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"

namespace kvtier {

bool IsContextLost(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorContained:
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorContextIsDestroyed:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorMpsClientTerminated:
    case cudaErrorExternalDevice:
      return true;
    default:
      return false;
  }
}

absl::Status CudaError(cudaError_t error, absl::string_view what, absl::string_view device_uuid) {
  if (error == cudaSuccess) return absl::OkStatus();
  cudaGetLastError();
  return MakeError(
      absl::StatusCode::kInternal, "DEVICE_ERROR",
      absl::StrCat(what, " on ", device_uuid, ": ", cudaGetErrorName(error), " (",
                   cudaGetErrorString(error), ")"),
      {{"device_uuid", std::string(device_uuid)}, {"device_error", cudaGetErrorName(error)}});
}

void CudaHealth::Lose(cudaError_t error) {
  cudaError_t expected = cudaSuccess;
  error_.compare_exchange_strong(expected, error, std::memory_order_acq_rel);
}

absl::Status CudaHealth::status() const {
  const cudaError_t error = error_.load(std::memory_order_acquire);
  if (error == cudaSuccess) return absl::OkStatus();
  return MakeError(absl::StatusCode::kUnavailable, "DEVICE_LOST",
                   absl::StrCat("CUDA context lost: ", cudaGetErrorName(error), " (",
                                cudaGetErrorString(error), "); the daemon must be started again"),
                   {{"device_error", cudaGetErrorName(error)}});
}

}  // namespace kvtier
