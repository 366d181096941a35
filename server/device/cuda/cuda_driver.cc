#include "server/device/cuda/cuda_driver.h"

#include <cuda_runtime_api.h>

#include "absl/strings/str_cat.h"
#include "kernels/cuda/driver_function.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

template <typename Function>
absl::Status Find(const char* name, Function* function) {
  const cudaError_t error = cuda::FindDriverFunction(name, function);
  if (error == cudaSuccess) return absl::OkStatus();
  const char* cause = cudaGetErrorName(error);
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "DEVICE_UNKNOWN",
      absl::StrCat("the NVIDIA driver has no ", name, " (", cause, "); a newer driver is needed"),
      {{"device_error", cause}});
}

}  // namespace

absl::StatusOr<CudaDriver> CudaDriver::Load() {
  CudaDriver driver;
  KVTIER_RETURN_IF_ERROR(Find("cuDeviceGet", &driver.device_get));
  KVTIER_RETURN_IF_ERROR(Find("cuDevicePrimaryCtxRetain", &driver.primary_context_retain));
  KVTIER_RETURN_IF_ERROR(Find("cuCtxPushCurrent", &driver.context_push));
  KVTIER_RETURN_IF_ERROR(Find("cuCtxPopCurrent", &driver.context_pop));
  KVTIER_RETURN_IF_ERROR(Find("cuMemCreate", &driver.memory_create));
  KVTIER_RETURN_IF_ERROR(Find("cuMemRelease", &driver.memory_release));
  KVTIER_RETURN_IF_ERROR(Find("cuMemAddressReserve", &driver.address_reserve));
  KVTIER_RETURN_IF_ERROR(Find("cuMemAddressFree", &driver.address_free));
  KVTIER_RETURN_IF_ERROR(Find("cuMemMap", &driver.memory_map));
  KVTIER_RETURN_IF_ERROR(Find("cuMemUnmap", &driver.memory_unmap));
  KVTIER_RETURN_IF_ERROR(Find("cuMemSetAccess", &driver.memory_set_access));
  KVTIER_RETURN_IF_ERROR(Find("cuMemGetAllocationGranularity", &driver.allocation_granularity));
  KVTIER_RETURN_IF_ERROR(Find("cuMemExportToShareableHandle", &driver.memory_export));
  KVTIER_RETURN_IF_ERROR(Find("cuMemGetAddressRange", &driver.address_range));
  KVTIER_RETURN_IF_ERROR(Find("cuStreamWriteValue32", &driver.stream_write_value));
  KVTIER_RETURN_IF_ERROR(Find("cuStreamWaitValue32", &driver.stream_wait_value));
  return driver;
}

}  // namespace kvtier
