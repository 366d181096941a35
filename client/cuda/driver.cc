#include "client/cuda/driver.h"

#include <cuda_runtime_api.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "client/error.h"
#include "kernels/cuda/driver_function.h"

namespace kvtier::client {
namespace {

template <typename Function>
absl::Status Find(const char* name, Function* function) {
  const cudaError_t error = cuda::FindDriverFunction(name, function);
  if (error == cudaSuccess) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNKNOWN",
                   absl::StrCat("the CUDA driver has no ", name, ": it is missing or too old"),
                   {{"device_error", cudaGetErrorName(error)}});
}

}  // namespace

absl::Status Driver::Status(CUresult result, absl::string_view what) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  (void)error_name(result, &name);
  const std::string error = name == nullptr ? absl::StrCat(static_cast<int>(result)) : name;
  return MakeError(absl::StatusCode::kInternal, "DEVICE_ERROR", absl::StrCat(what, ": ", error),
                   {{"device_error", error}});
}

absl::StatusOr<Driver> Driver::Load() {
  Driver driver;
  absl::Status status;
  status.Update(Find("cuMemImportFromShareableHandle", &driver.import));
  status.Update(Find("cuMemRelease", &driver.release));
  status.Update(Find("cuMemAddressReserve", &driver.reserve));
  status.Update(Find("cuMemAddressFree", &driver.free));
  status.Update(Find("cuMemMap", &driver.map));
  status.Update(Find("cuMemUnmap", &driver.unmap));
  status.Update(Find("cuMemSetAccess", &driver.set_access));
  status.Update(Find("cuMemGetAllocationGranularity", &driver.granularity));
  status.Update(Find("cuMemGetAddressRange", &driver.address_range));
  status.Update(Find("cuDevicePrimaryCtxRetain", &driver.context_retain));
  status.Update(Find("cuCtxPushCurrent", &driver.context_push));
  status.Update(Find("cuCtxPopCurrent", &driver.context_pop));
  status.Update(Find("cuStreamWriteValue32", &driver.write_value));
  status.Update(Find("cuStreamWaitValue32", &driver.wait_value));
  status.Update(Find("cuGetErrorName", &driver.error_name));
  if (!status.ok()) return status;
  return driver;
}

}  // namespace kvtier::client
