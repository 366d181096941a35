#include "client/cuda/cuda_device.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/cuda/driver.h"
#include "client/cuda/memory.h"
#include "client/cuda/status.h"
#include "client/error.h"
#include "kernels/cuda/driver_function.h"
#include "kernels/cuda/launch.h"

namespace kvtier::client {
namespace {

absl::Status DeviceUnknown(const std::string& uuid, absl::string_view why,
                           const std::string& known) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNKNOWN",
                   absl::StrCat("this process does not see the GPU ", uuid, ": ", why),
                   {{"device_uuid", uuid}, {"known", known}});
}

absl::StatusOr<int> FindOrdinal(const std::string& uuid) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error != cudaSuccess) {
    cudaGetLastError();
    return DeviceUnknown(uuid, cudaGetErrorString(error), "");
  }
  std::vector<std::string> known;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    cudaDeviceProp prop = {};
    if (cudaGetDeviceProperties(&prop, ordinal) != cudaSuccess) continue;
    known.push_back(cuda::UuidText(prop.uuid));
    if (known.back() == uuid) return ordinal;
  }
  const std::string list = absl::StrJoin(known, ", ");
  return DeviceUnknown(uuid, absl::StrCat("it sees ", list, " (CUDA_VISIBLE_DEVICES?)"), list);
}

bool IsHostMemory(v1::SegmentKind kind) {
  return kind == v1::SEGMENT_KIND_HOST_POOL || kind == v1::SEGMENT_KIND_BLOCK_GENERATION ||
         kind == v1::SEGMENT_KIND_BACKED_GENERATION || kind == v1::SEGMENT_KIND_PROGRESS;
}

// CUDA's part of the interface is a cudaStream_t.
absl::StatusOr<cudaStream_t> StreamOf(DeviceStreamRef stream) {
  if (stream != nullptr) return static_cast<cudaStream_t>(stream);
  return ArgumentError("device_stream", "null", "a cudaStream_t");
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const Gpu& gpu) : gpu_(gpu) {}

  ~CudaDevice() override {
    const ScopedContext current(gpu_.driver, gpu_.context);
    if (workspace_ != nullptr) (void)cudaFree(workspace_);
    if (copy_stream_ != nullptr) (void)cudaStreamDestroy(copy_stream_);
  }

  absl::Status Start() {
    const ScopedContext current(gpu_.driver, gpu_.context);
    return CudaStatus(cudaStreamCreateWithFlags(&copy_stream_, cudaStreamNonBlocking),
                      "cudaStreamCreate");
  }

  bool host_readable() const override { return false; }

  absl::Status CheckTransport(const v1::Segment& segment) const override {
    const bool fits = IsHostMemory(segment.kind())
                          ? segment.transport() == v1::SEGMENT_TRANSPORT_POSIX_FD
                          : segment.transport() == v1::SEGMENT_TRANSPORT_CUDA_FD ||
                                segment.transport() == v1::SEGMENT_TRANSPORT_CUDA_IPC;
    return fits ? absl::OkStatus() : TransportError(segment);
  }

  absl::StatusOr<std::unique_ptr<Mapping>> Map(const v1::Segment& segment,
                                               const RedeemToken& redeem) override {
    if (absl::Status status = CheckTransport(segment); !status.ok()) return status;
    if (IsHostMemory(segment.kind())) return MapRegistered(gpu_, segment, redeem);
    return segment.transport() == v1::SEGMENT_TRANSPORT_CUDA_FD ? ImportFd(gpu_, segment, redeem)
                                                                : OpenIpc(gpu_, segment);
  }

  absl::Status Reserve(const CacheShape& shape) override {
    const ScopedContext current(gpu_.driver, gpu_.context);
    workspace_rows_ = shape.step_rows;
    int64_t bytes = 1;
    for (const auto& group : shape.groups) {
      bytes = std::max(bytes, cuda::WorkspaceBytes(group.shape, workspace_rows_));
    }
    absl::Status status = CudaStatus(cudaMalloc(&workspace_, static_cast<size_t>(bytes)),
                                     absl::StrCat("cudaMalloc of ", bytes, " bytes of scratch"));
    if (!status.ok()) return status;
    status = CudaStatus(cudaMemsetAsync(workspace_, 0, static_cast<size_t>(bytes), copy_stream_),
                        "cudaMemset");
    if (!status.ok()) return status;
    return CudaStatus(cudaStreamSynchronize(copy_stream_), "cudaMemset");
  }

  absl::Status SwapIn(const SwapInParams& params, DeviceStreamRef stream) override {
    const ScopedContext current(gpu_.driver, gpu_.context);
    absl::StatusOr<cudaStream_t> on = StreamOf(stream);
    if (!on.ok()) return on.status();
    return CudaStatus(cuda::SwapIn(params, workspace_, *on), "swap-in");
  }

  absl::Status ReplayPlan(const ReplayPlanParams& params, DeviceStreamRef stream) override {
    const ScopedContext current(gpu_.driver, gpu_.context);
    absl::StatusOr<cudaStream_t> on = StreamOf(stream);
    if (!on.ok()) return on.status();
    return CudaStatus(cuda::ReplayPlan(params, *on), "plan replay");
  }

  absl::Status Backup(const BackupParams& params, DeviceStreamRef stream) override {
    const ScopedContext current(gpu_.driver, gpu_.context);
    absl::StatusOr<cudaStream_t> on = StreamOf(stream);
    if (!on.ok()) return on.status();
    return CudaStatus(cuda::Backup(params, *on), "backup");
  }

  absl::Status Read(void* destination, const void* source, int64_t bytes) const override {
    return Copy(destination, source, bytes, cudaMemcpyDeviceToHost);
  }
  absl::Status Write(void* destination, const void* source, int64_t bytes) const override {
    return Copy(destination, source, bytes, cudaMemcpyHostToDevice);
  }

  absl::Status Finish() override {
    const ScopedContext current(gpu_.driver, gpu_.context);
    return CudaStatus(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  absl::Status Signal(int32_t* word, int32_t number, DeviceStreamRef stream) override {
    const ScopedContext current(gpu_.driver, gpu_.context);
    // A graph would write the same number again with every replay.
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    absl::Status status =
        CudaStatus(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &capture),
                   "cudaStreamIsCapturing");
    if (!status.ok()) return status;
    if (capture != cudaStreamCaptureStatusNone) {
      return ArgumentError("device_stream", "being captured", "not: an RPC is no part of a graph");
    }
    return gpu_.driver.Status(
        gpu_.driver.write_value(static_cast<cudaStream_t>(stream),
                                reinterpret_cast<CUdeviceptr>(word),
                                static_cast<cuuint32_t>(number), CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue32");
  }

  absl::Status Wait(const int32_t* word, int32_t number, DeviceStreamRef stream) override {
    const ScopedContext current(gpu_.driver, gpu_.context);
    return gpu_.driver.Status(
        gpu_.driver.wait_value(static_cast<cudaStream_t>(stream),
                               reinterpret_cast<CUdeviceptr>(word), static_cast<cuuint32_t>(number),
                               CU_STREAM_WAIT_VALUE_GEQ),
        "cuStreamWaitValue32");
  }

 private:
  absl::Status Copy(void* destination, const void* source, int64_t bytes,
                    cudaMemcpyKind kind) const {
    const ScopedContext current(gpu_.driver, gpu_.context);
    absl::Status status = CudaStatus(
        cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes), kind, copy_stream_),
        "cudaMemcpy");
    if (!status.ok()) return status;
    return CudaStatus(cudaStreamSynchronize(copy_stream_), "cudaMemcpy");
  }

  const Gpu gpu_;
  cudaStream_t copy_stream_ = nullptr;  // for small copies; never waits for the worker's
  void* workspace_ = nullptr;
  int32_t workspace_rows_ = 1;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Device>> OpenCudaDevice(const std::string& uuid) {
  absl::StatusOr<int> ordinal = FindOrdinal(uuid);
  if (!ordinal.ok()) return ordinal.status();
  absl::StatusOr<Driver> driver = Driver::Load();
  if (!driver.ok()) return driver.status();
  // Never released: the runtime and the engine use it too.
  Gpu gpu = {.driver = *driver, .ordinal = *ordinal};
  absl::Status status =
      driver->Status(driver->context_retain(&gpu.context, *ordinal), "cuDevicePrimaryCtxRetain");
  if (!status.ok()) return status;
  auto device = std::make_unique<CudaDevice>(gpu);
  if (status = device->Start(); !status.ok()) return status;
  return std::unique_ptr<Device>(std::move(device));
}

}  // namespace kvtier::client
