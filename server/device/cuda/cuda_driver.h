// Driver functions, found at run time.
//
// The runtime has no calls for memory that is shared by descriptor, for contexts, or for numbers
// that streams wait for. A binary
// that is linked with libcuda does not start where there is no driver; these functions are looked
// up through the runtime instead. Their errors have the numbers of the runtime's.
#pragma once

#include <cuda.h>

#include "absl/status/statusor.h"

namespace kvtier {

struct CudaDriver {
  decltype(&cuDeviceGet) device_get = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) primary_context_retain = nullptr;
  decltype(&cuCtxPushCurrent) context_push = nullptr;
  decltype(&cuCtxPopCurrent) context_pop = nullptr;
  decltype(&cuMemCreate) memory_create = nullptr;
  decltype(&cuMemRelease) memory_release = nullptr;
  decltype(&cuMemAddressReserve) address_reserve = nullptr;
  decltype(&cuMemAddressFree) address_free = nullptr;
  decltype(&cuMemMap) memory_map = nullptr;
  decltype(&cuMemUnmap) memory_unmap = nullptr;
  decltype(&cuMemSetAccess) memory_set_access = nullptr;
  decltype(&cuMemGetAllocationGranularity) allocation_granularity = nullptr;
  decltype(&cuMemExportToShareableHandle) memory_export = nullptr;
  decltype(&cuMemGetAddressRange) address_range = nullptr;
  decltype(&cuStreamWriteValue32) stream_write_value = nullptr;
  decltype(&cuStreamWaitValue32) stream_wait_value = nullptr;

  // Makes no context. Errors: FAILED_PRECONDITION / DEVICE_UNKNOWN where the driver lacks one.
  static absl::StatusOr<CudaDriver> Load();
};

}  // namespace kvtier
