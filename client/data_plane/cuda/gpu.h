// One GPU of this process, and the driver functions that the runtime has none for: import of memory
// by file descriptor, numbers that streams write and wait for. Internal to client/data_plane.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <string>

#include "client/data_plane/error.h"

namespace kvtier::data_plane {

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

  // Nothing, or INTERNAL / DEVICE_ERROR.
  Error Check(CUresult result, const std::string& what) const;
};

// Mappings keep a copy.
struct Gpu {
  Driver driver;
  int ordinal = 0;
  CUcontext context = nullptr;  // its primary one, which lives as long as the process
};

// Finds the GPU of `uuid`. Errors: as OpenCuda.
Error FindGpu(const std::string& uuid, Gpu* gpu);

// Nothing, RESOURCE_EXHAUSTED / DEVICE_MEMORY_EXHAUSTED, or INTERNAL / DEVICE_ERROR; metadata
// device_error is CUDA's name. Clears the thread's pending error, so that it does not surface in
// an unrelated call of the engine's.
Error CheckCuda(cudaError_t error, const std::string& what);

// Makes a context current for a scope, and what was current before it again. Not cudaSetDevice: to
// give the former device back, that would make a context on it.
class ScopedContext {
 public:
  explicit ScopedContext(const Gpu& gpu)
      : driver_(gpu.driver), current_(driver_.context_push(gpu.context) == CUDA_SUCCESS) {}
  ~ScopedContext() {
    CUcontext ignored = nullptr;
    if (current_) (void)driver_.context_pop(&ignored);
  }
  ScopedContext(const ScopedContext&) = delete;
  ScopedContext& operator=(const ScopedContext&) = delete;

 private:
  const Driver& driver_;
  const bool current_;
};

}  // namespace kvtier::data_plane
