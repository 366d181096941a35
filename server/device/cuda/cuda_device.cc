#include "server/device/cuda/cuda_device.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "kernels/cuda/driver_function.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

absl::Status NoDevice(cudaError_t error) {
  cudaGetLastError();
  std::string cause = cudaGetErrorName(error);
  int version = 0;
  if (cudaDriverGetVersion(&version) != cudaSuccess || version == 0) {
    absl::StrAppend(&cause, ": no NVIDIA driver is installed or reachable");
  } else {
    absl::StrAppendFormat(&cause, ": %s; the driver is for CUDA %d.%d, this program for %d.%d",
                          cudaGetErrorString(error), version / 1000, version % 1000 / 10,
                          CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
  }
  cudaGetLastError();
  return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNKNOWN",
                   absl::StrCat("no CUDA device: ", cause),
                   {{"device_error", cudaGetErrorName(error)}});
}

}  // namespace

absl::Status CudaDevice::Activate() {
  KVTIER_RETURN_IF_ERROR(health_->status());
  if (context_.load(std::memory_order_acquire) != nullptr) return absl::OkStatus();
  CUdevice device = 0;
  KVTIER_RETURN_IF_ERROR(Check(driver_.device_get(&device, ordinal_), "cuDeviceGet"));
  // Two threads that come at once get the same one.
  CUcontext context = nullptr;
  const CUresult made = driver_.primary_context_retain(&context, device);
  if (made == CUDA_ERROR_OUT_OF_MEMORY) {
    return Exhausted("a CUDA context", 0, "all of it is in use");
  }
  KVTIER_RETURN_IF_ERROR(Check(made, "making a CUDA context"));
  context_.store(context, std::memory_order_release);
  return absl::OkStatus();
}

absl::Status CudaDevice::Check(cudaError_t error, absl::string_view what) const {
  if (error == cudaSuccess) return absl::OkStatus();
  if (IsContextLost(error)) health_->Lose(error);
  // Clears the pending error in any case.
  const absl::Status status = CudaError(error, what, info_.uuid);
  KVTIER_RETURN_IF_ERROR(health_->status());
  return status;
}

absl::Status CudaDevice::CheckMemory(cudaError_t error, absl::string_view purpose,
                                     int64_t bytes) const {
  if (error != cudaErrorMemoryAllocation) {
    return Check(error, absl::StrCat("device memory for ", purpose));
  }
  cudaGetLastError();
  size_t free = 0, total = 0;
  if (cudaMemGetInfo(&free, &total) != cudaSuccess) {
    cudaGetLastError();
    return Exhausted(purpose, bytes, cudaGetErrorName(error));
  }
  return Exhausted(
      purpose, bytes,
      absl::StrCat(cudaGetErrorName(error), ", ", free, " of ", total, " bytes are free"));
}

absl::Status CudaDevice::Exhausted(absl::string_view purpose, int64_t bytes,
                                   absl::string_view cause) const {
  return MakeError(absl::StatusCode::kResourceExhausted, "DEVICE_MEMORY_EXHAUSTED",
                   absl::StrCat("device ", info_.uuid, " has no room for ", purpose, " of ", bytes,
                                " bytes: ", cause),
                   {{"device_uuid", info_.uuid}, {"requested_bytes", absl::StrCat(bytes)}});
}

ScopedContext::ScopedContext(const CudaDevice& device) : device_(device) {
  CUcontext const context = device.context_.load(std::memory_order_acquire);
  error_ = context == nullptr ? cudaErrorDeviceUninitialized
                              : static_cast<cudaError_t>(device.driver_.context_push(context));
  current_ = error_ == cudaSuccess;
}

ScopedContext::~ScopedContext() {
  CUcontext ignored = nullptr;
  if (current_) (void)device_.driver_.context_pop(&ignored);
}

absl::Status ScopedContext::status() const {
  KVTIER_RETURN_IF_ERROR(device_.health().status());
  return device_.Check(error_, "entering the CUDA context");
}

absl::StatusOr<std::vector<std::shared_ptr<CudaDevice>>> FindCudaDevices(
    const std::shared_ptr<CudaHealth>& health) {
  int count = 0;
  if (const cudaError_t error = cudaGetDeviceCount(&count); error != cudaSuccess) {
    return NoDevice(error);
  }
  if (count == 0) return NoDevice(cudaErrorNoDevice);
  KVTIER_ASSIGN_OR_RETURN(const CudaDriver driver, CudaDriver::Load());
  std::vector<std::shared_ptr<CudaDevice>> devices;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp properties = {};
    const cudaError_t error = cudaGetDeviceProperties(&properties, ordinal);
    if (error != cudaSuccess) return NoDevice(error);
    DeviceInfo info = {.uuid = cuda::UuidText(properties.uuid),
                       .name = properties.name,
                       .kind = BackendKind::kCuda,
                       .memory_bytes = static_cast<int64_t>(properties.totalGlobalMem)};
    devices.push_back(std::make_shared<CudaDevice>(std::move(info), ordinal, driver, health));
  }
  return devices;
}

}  // namespace kvtier
