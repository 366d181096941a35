// The driver functions that the runtime has none for, found at run time: import of memory by file
// descriptor, numbers that streams write and wait for. Linking libcuda would keep the library
// from starting where there is no driver. Internal to client/cuda.
#pragma once

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvtier::client {

struct Driver {
  decltype(&cuMemImportFromShareableHandle) import = nullptr;
  decltype(&cuMemRelease) release = nullptr;
  decltype(&cuMemAddressReserve) reserve = nullptr;
  decltype(&cuMemAddressFree) free = nullptr;
  decltype(&cuMemMap) map = nullptr;
  decltype(&cuMemUnmap) unmap = nullptr;
  decltype(&cuMemSetAccess) set_access = nullptr;
  decltype(&cuMemGetAllocationGranularity) granularity = nullptr;
  decltype(&cuMemGetAddressRange) address_range = nullptr;
  decltype(&cuDevicePrimaryCtxRetain) context_retain = nullptr;
  decltype(&cuCtxPushCurrent) context_push = nullptr;
  decltype(&cuCtxPopCurrent) context_pop = nullptr;
  decltype(&cuStreamWriteValue32) write_value = nullptr;
  decltype(&cuStreamWaitValue32) wait_value = nullptr;
  decltype(&cuGetErrorName) error_name = nullptr;

  // OK, or INTERNAL / DEVICE_ERROR.
  absl::Status Status(CUresult result, absl::string_view what) const;

  // Errors: FAILED_PRECONDITION / DEVICE_UNKNOWN where the driver is missing or too old.
  static absl::StatusOr<Driver> Load();
};

}  // namespace kvtier::client
