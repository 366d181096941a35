#include "client/data_plane/cuda/cuda_device.h"

#include <algorithm>
#include <utility>

#include "client/data_plane/cuda/gpu.h"
#include "client/data_plane/cuda/memory.h"
#include "kernels/cuda/launch.h"

namespace kvtier::data_plane {
namespace {

Error CheckStream(Stream stream) {
  if (stream != nullptr) return {};
  return ArgumentError("device_stream", "null", "a cudaStream_t");
}

class CudaDevice final : public Device {
 public:
  explicit CudaDevice(const Gpu& gpu) : gpu_(gpu) {}
  ~CudaDevice() override {
    const ScopedContext current(gpu_);
    if (workspace_ != nullptr) (void)cudaFree(workspace_);
    if (copy_stream_ != nullptr) (void)cudaStreamDestroy(copy_stream_);
  }

  Error Start() {
    const ScopedContext current(gpu_);
    return CheckCuda(cudaStreamCreateWithFlags(&copy_stream_, cudaStreamNonBlocking),
                     "cudaStreamCreate");
  }

  int32_t ordinal() const override { return gpu_.ordinal; }

  Error MapFile(const FilePart& part, std::unique_ptr<Mapping>* mapping) override {
    std::unique_ptr<Mapping> host;
    if (Error error = MapHostFile(part, &host); !error.ok()) return error;
    return Register(gpu_, std::move(host), part.size_bytes, part.read_only, mapping);
  }
  Error MapGpuFile(int32_t fd, int64_t size_bytes, std::unique_ptr<Mapping>* mapping) override {
    return ImportFile(gpu_, fd, size_bytes, mapping);
  }
  Error MapGpuHandle(const void* handle, int64_t offset_bytes, int64_t size_bytes,
                     std::unique_ptr<Mapping>* mapping) override {
    return OpenHandle(gpu_, handle, offset_bytes, size_bytes, mapping);
  }

  Error Reserve(const std::vector<GroupShape>& shapes, int32_t step_rows) override {
    const ScopedContext current(gpu_);
    int64_t bytes = 1;
    for (const GroupShape& shape : shapes) {
      bytes = std::max(bytes, cuda::WorkspaceBytes(shape, step_rows));
    }
    Error error = CheckCuda(cudaMalloc(&workspace_, static_cast<size_t>(bytes)),
                            "cudaMalloc of " + std::to_string(bytes) + " bytes of scratch");
    if (!error.ok()) return error;
    error = CheckCuda(cudaMemsetAsync(workspace_, 0, static_cast<size_t>(bytes), copy_stream_),
                      "cudaMemset");
    if (!error.ok()) return error;
    return CheckCuda(cudaStreamSynchronize(copy_stream_), "cudaMemset");
  }

  Error SwapIn(const SwapInParams& params, Stream stream) override {
    if (Error error = CheckStream(stream); !error.ok()) return error;
    const ScopedContext current(gpu_);
    return CheckCuda(cuda::SwapIn(params, workspace_, static_cast<cudaStream_t>(stream)),
                     "swap-in");
  }

  Error ReplayPlan(const ReplayPlanParams& params, Stream stream) override {
    if (Error error = CheckStream(stream); !error.ok()) return error;
    const ScopedContext current(gpu_);
    return CheckCuda(cuda::ReplayPlan(params, static_cast<cudaStream_t>(stream)), "plan replay");
  }

  Error Backup(const BackupParams& params, Stream stream) override {
    if (Error error = CheckStream(stream); !error.ok()) return error;
    const ScopedContext current(gpu_);
    return CheckCuda(cuda::Backup(params, static_cast<cudaStream_t>(stream)), "backup");
  }

  Error Read(void* destination, const void* source, int64_t bytes) override {
    return Copy(destination, source, bytes, cudaMemcpyDeviceToHost);
  }
  Error Write(void* destination, const void* source, int64_t bytes) override {
    return Copy(destination, source, bytes, cudaMemcpyHostToDevice);
  }

  Error Finish() override {
    const ScopedContext current(gpu_);
    return CheckCuda(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
  }

  Error Signal(int32_t* word, int32_t number, Stream stream) override {
    if (Error error = CheckStream(stream); !error.ok()) return error;
    const ScopedContext current(gpu_);
    // A graph would write the same number again with every replay.
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    Error error = CheckCuda(cudaStreamIsCapturing(static_cast<cudaStream_t>(stream), &capture),
                            "cudaStreamIsCapturing");
    if (!error.ok()) return error;
    if (capture != cudaStreamCaptureStatusNone) {
      return ArgumentError("device_stream", "being captured", "not: an RPC is no part of a graph");
    }
    return gpu_.driver.Check(
        gpu_.driver.write_value(static_cast<cudaStream_t>(stream),
                                reinterpret_cast<CUdeviceptr>(word),
                                static_cast<cuuint32_t>(number), CU_STREAM_WRITE_VALUE_DEFAULT),
        "cuStreamWriteValue32");
  }

  Error Wait(const int32_t* word, int32_t number, Stream stream) override {
    if (Error error = CheckStream(stream); !error.ok()) return error;
    const ScopedContext current(gpu_);
    return gpu_.driver.Check(
        gpu_.driver.wait_value(static_cast<cudaStream_t>(stream),
                               reinterpret_cast<CUdeviceptr>(word), static_cast<cuuint32_t>(number),
                               CU_STREAM_WAIT_VALUE_GEQ),
        "cuStreamWaitValue32");
  }

 private:
  Error Copy(void* destination, const void* source, int64_t bytes, cudaMemcpyKind kind) {
    const ScopedContext current(gpu_);
    Error error = CheckCuda(
        cudaMemcpyAsync(destination, source, static_cast<size_t>(bytes), kind, copy_stream_),
        "cudaMemcpy");
    if (!error.ok()) return error;
    return CheckCuda(cudaStreamSynchronize(copy_stream_), "cudaMemcpy");
  }

  const Gpu gpu_;
  cudaStream_t copy_stream_ = nullptr;  // for small copies; never waits for the worker's
  void* workspace_ = nullptr;
};

}  // namespace

Error OpenCuda(const std::string& uuid, std::unique_ptr<Device>* device) {
  Gpu gpu;
  if (Error error = FindGpu(uuid, &gpu); !error.ok()) return error;
  auto opened = std::make_unique<CudaDevice>(gpu);
  if (Error error = opened->Start(); !error.ok()) return error;
  *device = std::move(opened);
  return {};
}

}  // namespace kvtier::data_plane
