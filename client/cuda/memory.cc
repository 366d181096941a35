#include "client/cuda/memory.h"

#include <cuda_runtime_api.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "client/cuda/status.h"
#include "client/error.h"

namespace kvtier::client {
namespace {

// One registration of a whole pool would take as long as all of it and fail as one.
constexpr int64_t kRegisterChunkBytes = int64_t{1} << 30;

std::string NameOf(const v1::Segment& segment) {
  return absl::StrCat("segment ", segment.segment_index());
}

class ImportedMapping final : public Mapping {
 public:
  ImportedMapping(const Gpu& gpu, CUdeviceptr address, size_t mapped_bytes, int64_t size_bytes)
      : Mapping(reinterpret_cast<uint8_t*>(address), size_bytes),
        gpu_(gpu),
        mapped_bytes_(mapped_bytes) {}
  ~ImportedMapping() override {
    const ScopedContext current(gpu_.driver, gpu_.context);
    const auto address = reinterpret_cast<CUdeviceptr>(data());
    (void)gpu_.driver.unmap(address, mapped_bytes_);
    (void)gpu_.driver.free(address, mapped_bytes_);
  }

 private:
  const Gpu gpu_;
  const size_t mapped_bytes_;
};

class IpcMapping final : public Mapping {
 public:
  IpcMapping(const Gpu& gpu, uint8_t* base, int64_t offset_bytes, int64_t size_bytes)
      : Mapping(base + offset_bytes, size_bytes), gpu_(gpu), base_(base) {}
  ~IpcMapping() override {
    const ScopedContext current(gpu_.driver, gpu_.context);
    (void)cudaIpcCloseMemHandle(base_);
  }

 private:
  const Gpu gpu_;
  uint8_t* const base_;
};

class RegisteredMapping final : public Mapping {
 public:
  RegisteredMapping(const Gpu& gpu, std::unique_ptr<Mapping> host)
      : Mapping(host->data(), host->size_bytes()), gpu_(gpu), host_(std::move(host)) {}
  ~RegisteredMapping() override {
    const ScopedContext current(gpu_.driver, gpu_.context);
    for (uint8_t* chunk : chunks_) (void)cudaHostUnregister(chunk);
  }

  absl::Status Register(bool read_only) {
    const ScopedContext current(gpu_.driver, gpu_.context);
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped |
                           (read_only ? cudaHostRegisterReadOnly : 0U);
    for (int64_t begin = 0; begin < size_bytes(); begin += kRegisterChunkBytes) {
      const int64_t bytes = std::min(kRegisterChunkBytes, size_bytes() - begin);
      const cudaError_t error = cudaHostRegister(data() + begin, static_cast<size_t>(bytes), flags);
      if (error != cudaSuccess) {
        cudaGetLastError();
        return MakeError(
            absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
            absl::StrCat("host memory: registering ", bytes,
                         " bytes with the CUDA driver: ", cudaGetErrorString(error)),
            {{"requested_bytes", absl::StrCat(bytes)}, {"device_error", cudaGetErrorName(error)}});
      }
      chunks_.push_back(data() + begin);
    }
    // The kernels use the host's addresses; they are the same on every platform with this
    // property, and elsewhere nothing would be right.
    void* address = nullptr;
    const cudaError_t error = cudaHostGetDevicePointer(&address, data(), 0);
    if (error != cudaSuccess) return CudaStatus(error, "cudaHostGetDevicePointer");
    if (address == data()) return absl::OkStatus();
    return MakeError(absl::StatusCode::kUnimplemented, "NOT_IMPLEMENTED",
                     "this platform gives registered host memory another address on the GPU",
                     {{"feature", "host addresses that differ"}});
  }

 private:
  const Gpu gpu_;
  const std::unique_ptr<Mapping> host_;
  std::vector<uint8_t*> chunks_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Mapping>> ImportFd(const Gpu& gpu, const v1::Segment& segment,
                                                  const RedeemToken& redeem) {
  const Driver& driver = gpu.driver;
  if (segment.size_bytes() <= 0 || segment.offset_bytes() != 0 || segment.read_only()) {
    return MalformedAnswer(absl::StrCat(NameOf(segment), " has ", segment.size_bytes(),
                                        " bytes of GPU memory from offset ",
                                        segment.offset_bytes()));
  }
  absl::StatusOr<int> fd = redeem(segment.fd_token());
  if (!fd.ok()) return fd.status();
  const absl::Cleanup close_fd = [fd = *fd] { close(fd); };
  const ScopedContext current(gpu.driver, gpu.context);
  CUmemAllocationProp prop = {};
  prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  prop.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu.ordinal};
  size_t unit = 0;
  absl::Status status =
      driver.Status(driver.granularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                    "cuMemGetAllocationGranularity");
  if (!status.ok()) return status;
  const size_t bytes = (static_cast<size_t>(segment.size_bytes()) + unit - 1) / unit * unit;
  CUmemGenericAllocationHandle handle = 0;
  status = driver.Status(driver.import(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(*fd)),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                         absl::StrCat(NameOf(segment), ": cuMemImportFromShareableHandle"));
  if (!status.ok()) return status;
  // A mapping keeps the memory; the handle is needed only to make it.
  const absl::Cleanup release = [&] { (void)driver.release(handle); };
  CUdeviceptr address = 0;
  status = driver.Status(driver.reserve(&address, bytes, unit, 0, 0), "cuMemAddressReserve");
  if (!status.ok()) return status;
  absl::Cleanup free = [&] { (void)driver.free(address, bytes); };
  status = driver.Status(driver.map(address, bytes, 0, handle, 0),
                         absl::StrCat(NameOf(segment), ": cuMemMap of ", bytes, " bytes"));
  if (!status.ok()) return status;
  absl::Cleanup unmap = [&] { (void)driver.unmap(address, bytes); };
  CUmemAccessDesc access = {};
  access.location = prop.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  status = driver.Status(driver.set_access(address, bytes, &access, 1), "cuMemSetAccess");
  if (!status.ok()) return status;
  std::move(unmap).Cancel();
  std::move(free).Cancel();
  return std::unique_ptr<Mapping>(
      std::make_unique<ImportedMapping>(gpu, address, bytes, segment.size_bytes()));
}

absl::StatusOr<std::unique_ptr<Mapping>> OpenIpc(const Gpu& gpu, const v1::Segment& segment) {
  cudaIpcMemHandle_t handle = {};
  if (segment.ipc_handle().size() != sizeof(handle) || segment.size_bytes() <= 0 ||
      segment.offset_bytes() < 0 || segment.read_only()) {
    return MalformedAnswer(absl::StrCat(
        NameOf(segment), " has an IPC handle of ", segment.ipc_handle().size(), " bytes, ",
        segment.size_bytes(), " bytes of memory from offset ", segment.offset_bytes()));
  }
  std::memcpy(&handle, segment.ipc_handle().data(), sizeof(handle));
  const ScopedContext current(gpu.driver, gpu.context);
  void* base = nullptr;
  const cudaError_t error = cudaIpcOpenMemHandle(&base, handle, cudaIpcMemLazyEnablePeerAccess);
  if (error != cudaSuccess) {
    return CudaStatus(error, absl::StrCat(NameOf(segment), ": cudaIpcOpenMemHandle"));
  }
  auto mapping = std::make_unique<IpcMapping>(gpu, static_cast<uint8_t*>(base),
                                              segment.offset_bytes(), segment.size_bytes());
  CUdeviceptr start = 0;
  size_t bytes = 0;
  absl::Status status = gpu.driver.Status(
      gpu.driver.address_range(&start, &bytes, reinterpret_cast<CUdeviceptr>(base)),
      "cuMemGetAddressRange");
  if (!status.ok()) return status;
  const auto all = static_cast<int64_t>(bytes);
  if (segment.offset_bytes() > all || segment.size_bytes() > all - segment.offset_bytes()) {
    return MalformedAnswer(absl::StrCat(NameOf(segment), ": ", segment.size_bytes(), " bytes from ",
                                        segment.offset_bytes(), ", but its allocation has ", all));
  }
  return std::unique_ptr<Mapping>(std::move(mapping));
}

absl::StatusOr<std::unique_ptr<Mapping>> MapRegistered(const Gpu& gpu, const v1::Segment& segment,
                                                       const RedeemToken& redeem) {
  absl::StatusOr<std::unique_ptr<Mapping>> host = MapFile(segment, redeem);
  if (!host.ok()) return host.status();
  auto mapping = std::make_unique<RegisteredMapping>(gpu, *std::move(host));
  if (absl::Status status = mapping->Register(segment.read_only()); !status.ok()) return status;
  return std::unique_ptr<Mapping>(std::move(mapping));
}

}  // namespace kvtier::client
