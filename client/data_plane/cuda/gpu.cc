#include "client/data_plane/cuda/gpu.h"

#include "kernels/cuda/driver_function.h"

namespace kvtier::data_plane {
namespace {

Error DeviceUnknown(const std::string& uuid, const std::string& why, const std::string& known) {
  return {.code = Code::kFailedPrecondition,
          .reason = "DEVICE_UNKNOWN",
          .message = "this process does not see the GPU " + uuid + ": " + why,
          .metadata = {{"device_uuid", uuid}, {"known", known}}};
}

Error FindOrdinal(const std::string& uuid, int* found) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return DeviceUnknown(uuid, cudaGetErrorString(error), "");
  }
  std::string known;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties = {};
    if (cudaGetDeviceProperties(&properties, ordinal) != cudaSuccess) continue;
    const std::string text = cuda::UuidText(properties.uuid);
    if (text == uuid) {
      *found = ordinal;
      return {};
    }
    known += (known.empty() ? "" : ", ") + text;
  }
  return DeviceUnknown(uuid, "it sees " + known + " (CUDA_VISIBLE_DEVICES?)", known);
}

template <typename Function>
void Find(const char* name, Function* function, Error* error) {
  if (!error->ok()) return;
  const cudaError_t result = cuda::FindDriverFunction(name, function);
  if (result == cudaSuccess) return;
  *error = {.code = Code::kFailedPrecondition,
            .reason = "DEVICE_UNKNOWN",
            .message = std::string("the CUDA driver has no ") + name + ": it is missing or too old",
            .metadata = {{"device_error", cudaGetErrorName(result)}}};
}

Error LoadDriver(Driver* driver) {
  Error error;
  Find("cuMemImportFromShareableHandle", &driver->import, &error);
  Find("cuMemRelease", &driver->release, &error);
  Find("cuMemAddressReserve", &driver->reserve, &error);
  Find("cuMemAddressFree", &driver->free, &error);
  Find("cuMemMap", &driver->map, &error);
  Find("cuMemUnmap", &driver->unmap, &error);
  Find("cuMemSetAccess", &driver->set_access, &error);
  Find("cuMemGetAllocationGranularity", &driver->granularity, &error);
  Find("cuMemGetAddressRange", &driver->address_range, &error);
  Find("cuDevicePrimaryCtxRetain", &driver->context_retain, &error);
  Find("cuCtxPushCurrent", &driver->context_push, &error);
  Find("cuCtxPopCurrent", &driver->context_pop, &error);
  Find("cuStreamWriteValue32", &driver->write_value, &error);
  Find("cuStreamWaitValue32", &driver->wait_value, &error);
  Find("cuGetErrorName", &driver->error_name, &error);
  return error;
}

}  // namespace

Error Driver::Check(CUresult result, const std::string& what) const {
  if (result == CUDA_SUCCESS) return {};
  const char* name = nullptr;
  (void)error_name(result, &name);
  const std::string text = name == nullptr ? std::to_string(static_cast<int>(result)) : name;
  return {.code = Code::kInternal,
          .reason = "DEVICE_ERROR",
          .message = what + ": " + text,
          .metadata = {{"device_error", text}}};
}

Error FindGpu(const std::string& uuid, Gpu* gpu) {
  if (Error error = FindOrdinal(uuid, &gpu->ordinal); !error.ok()) return error;
  if (Error error = LoadDriver(&gpu->driver); !error.ok()) return error;
  // Never released: the runtime and the engine use it too.
  return gpu->driver.Check(gpu->driver.context_retain(&gpu->context, gpu->ordinal),
                           "cuDevicePrimaryCtxRetain");
}

Error CheckCuda(cudaError_t error, const std::string& what) {
  if (error == cudaSuccess) return {};
  cudaGetLastError();
  const bool memory = error == cudaErrorMemoryAllocation;
  return {.code = memory ? Code::kResourceExhausted : Code::kInternal,
          .reason = memory ? "DEVICE_MEMORY_EXHAUSTED" : "DEVICE_ERROR",
          .message = what + ": " + cudaGetErrorString(error),
          .metadata = {{"device_error", cudaGetErrorName(error)}}};
}

}  // namespace kvtier::data_plane
