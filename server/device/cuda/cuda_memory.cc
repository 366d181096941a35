#include "server/device/cuda/cuda_memory.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <fcntl.h>

#include <cstring>
#include <utility>

#include "server/core/error.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

// cudaMalloc puts smaller pieces into one block of this size, and a legacy handle opens the whole
// block: a piece that has a multiple of it shares its bytes with nobody.
constexpr int64_t kLegacyBlockBytes = int64_t{2} << 20;

size_t RoundUp(int64_t bytes, size_t unit) {
  return (static_cast<size_t>(bytes) + unit - 1) / unit * unit;
}

// Zeroes memory and waits for that, on a device stream of its own.
cudaError_t Clear(void* data, size_t bytes) {
  cudaStream_t stream = nullptr;
  cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
  if (error != cudaSuccess) return error;
  error = cudaMemsetAsync(data, 0, bytes, stream);
  if (error == cudaSuccess) error = cudaStreamSynchronize(stream);
  (void)cudaStreamDestroy(stream);
  return error;
}

// The driver has one error for whatever stops an export.
bool HasDescriptorLeft() { return UniqueFd(open("/dev/null", O_RDONLY | O_CLOEXEC)).valid(); }

absl::Status NoDescriptorLeft() {
  return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                   "no file descriptor left to export device memory; raise the limit (ulimit -n)",
                   {{"limit", "file descriptors"}});
}

class ShareableMemory final : public DeviceMemory {
 public:
  ShareableMemory(std::shared_ptr<CudaDevice> device, int64_t bytes)
      : device_(std::move(device)), size_bytes_(bytes) {}
  // Undoes the steps that were done.
  ~ShareableMemory() override {
    const ScopedContext context(*device_);
    if (mapped_) (void)driver().memory_unmap(address_, mapped_bytes_);
    if (address_ != 0) (void)driver().address_free(address_, mapped_bytes_);
    if (created_) (void)driver().memory_release(handle_);
  }

  absl::Status Make(absl::string_view purpose) {
    const ScopedContext context(*device_);
    KVTIER_RETURN_IF_ERROR(context.status());
    const auto check = [&](auto result) {
      return device_->CheckMemory(result, purpose, size_bytes_);
    };
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    properties.location.id = device_->ordinal();
    size_t granularity = 0;
    KVTIER_RETURN_IF_ERROR(check(driver().allocation_granularity(
        &granularity, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED)));
    mapped_bytes_ = RoundUp(size_bytes_, granularity);
    KVTIER_RETURN_IF_ERROR(check(driver().memory_create(&handle_, mapped_bytes_, &properties, 0)));
    created_ = true;
    KVTIER_RETURN_IF_ERROR(
        check(driver().address_reserve(&address_, mapped_bytes_, granularity, 0, 0)));
    KVTIER_RETURN_IF_ERROR(check(driver().memory_map(address_, mapped_bytes_, 0, handle_, 0)));
    mapped_ = true;
    CUmemAccessDesc access = {};
    access.location = properties.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    KVTIER_RETURN_IF_ERROR(check(driver().memory_set_access(address_, mapped_bytes_, &access, 1)));
    return check(Clear(data(), mapped_bytes_));
  }

  uint8_t* data() const override { return reinterpret_cast<uint8_t*>(address_); }
  int64_t size_bytes() const override { return size_bytes_; }

  absl::StatusOr<MemoryHandle> Export() const override {
    const ScopedContext context(*device_);
    KVTIER_RETURN_IF_ERROR(context.status());
    int fd = -1;
    const CUresult result =
        driver().memory_export(&fd, handle_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    if (result != CUDA_SUCCESS && !HasDescriptorLeft()) return NoDescriptorLeft();
    KVTIER_RETURN_IF_ERROR(device_->Check(result, "exporting device memory as a descriptor"));
    MemoryHandle handle;
    handle.transport = MemoryHandle::Transport::kCudaFd;
    handle.fd = UniqueFd(fd);
    (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
    return handle;
  }

 private:
  const CudaDriver& driver() const { return device_->driver(); }

  const std::shared_ptr<CudaDevice> device_;
  const int64_t size_bytes_;
  size_t mapped_bytes_ = 0;
  CUmemGenericAllocationHandle handle_ = 0;
  CUdeviceptr address_ = 0;
  bool created_ = false;
  bool mapped_ = false;
};

class LegacyMemory final : public DeviceMemory {
 public:
  LegacyMemory(std::shared_ptr<CudaDevice> device, int64_t bytes)
      : device_(std::move(device)), size_bytes_(bytes) {}
  ~LegacyMemory() override {
    const ScopedContext context(*device_);
    if (data_ != nullptr && context.current()) (void)cudaFree(data_);
  }

  absl::Status Make(absl::string_view purpose) {
    const ScopedContext context(*device_);
    KVTIER_RETURN_IF_ERROR(context.status());
    const size_t bytes = RoundUp(size_bytes_, kLegacyBlockBytes);
    KVTIER_RETURN_IF_ERROR(device_->CheckMemory(cudaMalloc(&data_, bytes), purpose, size_bytes_));
    return device_->CheckMemory(Clear(data_, bytes), purpose, size_bytes_);
  }

  uint8_t* data() const override { return static_cast<uint8_t*>(data_); }
  int64_t size_bytes() const override { return size_bytes_; }

  absl::StatusOr<MemoryHandle> Export() const override {
    const ScopedContext context(*device_);
    KVTIER_RETURN_IF_ERROR(context.status());
    cudaIpcMemHandle_t ipc = {};
    KVTIER_RETURN_IF_ERROR(device_->Check(cudaIpcGetMemHandle(&ipc, data_), "cudaIpcGetMemHandle"));
    // The handle opens what the driver allocated, of which this may be a part.
    CUdeviceptr base = 0;
    KVTIER_RETURN_IF_ERROR(device_->Check(
        device_->driver().address_range(&base, nullptr, reinterpret_cast<CUdeviceptr>(data_)),
        "cuMemGetAddressRange"));
    MemoryHandle handle;
    handle.transport = MemoryHandle::Transport::kCudaIpc;
    static_assert(sizeof(ipc) == sizeof(handle.ipc_handle));
    std::memcpy(handle.ipc_handle.data(), &ipc, sizeof(ipc));
    handle.offset_bytes = static_cast<int64_t>(reinterpret_cast<CUdeviceptr>(data_) - base);
    return handle;
  }

 private:
  const std::shared_ptr<CudaDevice> device_;
  const int64_t size_bytes_;
  void* data_ = nullptr;
};

template <typename Memory>
absl::StatusOr<std::unique_ptr<DeviceMemory>> Made(std::unique_ptr<Memory> memory,
                                                   absl::string_view purpose) {
  KVTIER_RETURN_IF_ERROR(memory->Make(purpose));
  return memory;
}

}  // namespace

absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateShareable(std::shared_ptr<CudaDevice> device,
                                                                absl::string_view purpose,
                                                                int64_t bytes) {
  return Made(std::make_unique<ShareableMemory>(std::move(device), bytes), purpose);
}

absl::StatusOr<std::unique_ptr<DeviceMemory>> AllocateLegacy(std::shared_ptr<CudaDevice> device,
                                                             absl::string_view purpose,
                                                             int64_t bytes) {
  return Made(std::make_unique<LegacyMemory>(std::move(device), bytes), purpose);
}

}  // namespace kvtier
