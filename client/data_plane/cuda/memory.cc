#include "client/data_plane/cuda/memory.h"

#include <algorithm>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace kvtier::data_plane {
namespace {

// One registration of a whole pool would take as long as all of it and fail as one.
constexpr int64_t kRegisterChunkBytes = int64_t{1} << 30;

// What ImportFile has made so far: undone at the end, unless it is kept.
class Imported {
 public:
  explicit Imported(const Gpu& gpu) : gpu_(gpu) {}
  ~Imported() {
    const ScopedContext current(gpu_);
    if (mapped_) (void)gpu_.driver.unmap(address_, bytes_);
    if (address_ != 0) (void)gpu_.driver.free(address_, bytes_);
  }
  Imported(const Imported&) = delete;
  Imported& operator=(const Imported&) = delete;

  Error Map(int32_t fd, int64_t size_bytes) {
    const Driver& driver = gpu_.driver;
    CUmemAllocationProp properties = {};
    properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    properties.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE, .id = gpu_.ordinal};
    size_t unit = 0;
    Error error =
        driver.Check(driver.granularity(&unit, &properties, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
                     "cuMemGetAllocationGranularity");
    if (!error.ok()) return error;
    bytes_ = (static_cast<size_t>(size_bytes) + unit - 1) / unit * unit;
    CUmemGenericAllocationHandle handle = 0;
    error = driver.Check(driver.import(&handle, reinterpret_cast<void*>(static_cast<intptr_t>(fd)),
                                       CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
                         "cuMemImportFromShareableHandle");
    if (!error.ok()) return error;
    error = MapHandle(handle, unit, properties.location);
    // A mapping keeps the memory; the handle is needed only to make it.
    (void)driver.release(handle);
    return error;
  }

  CUdeviceptr address() const { return address_; }

 private:
  Error MapHandle(CUmemGenericAllocationHandle handle, size_t unit, const CUmemLocation& location) {
    const Driver& driver = gpu_.driver;
    Error error =
        driver.Check(driver.reserve(&address_, bytes_, unit, 0, 0), "cuMemAddressReserve");
    if (!error.ok()) return error;
    error = driver.Check(driver.map(address_, bytes_, 0, handle, 0),
                         "cuMemMap of " + std::to_string(bytes_) + " bytes");
    if (!error.ok()) return error;
    mapped_ = true;
    CUmemAccessDesc access = {};
    access.location = location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    return driver.Check(driver.set_access(address_, bytes_, &access, 1), "cuMemSetAccess");
  }

  const Gpu gpu_;
  CUdeviceptr address_ = 0;
  size_t bytes_ = 0;
  bool mapped_ = false;
};

class ImportedMapping final : public Mapping {
 public:
  explicit ImportedMapping(std::unique_ptr<Imported> imported)
      : Mapping(reinterpret_cast<uint8_t*>(imported->address())), imported_(std::move(imported)) {}

 private:
  const std::unique_ptr<Imported> imported_;
};

class HandleMapping final : public Mapping {
 public:
  HandleMapping(const Gpu& gpu, uint8_t* base, int64_t offset_bytes)
      : Mapping(base + offset_bytes), gpu_(gpu), base_(base) {}
  ~HandleMapping() override {
    const ScopedContext current(gpu_);
    (void)cudaIpcCloseMemHandle(base_);
  }

 private:
  const Gpu gpu_;
  uint8_t* const base_;
};

class RegisteredMapping final : public Mapping {
 public:
  RegisteredMapping(const Gpu& gpu, std::unique_ptr<Mapping> host)
      : Mapping(host->data()), gpu_(gpu), host_(std::move(host)) {}
  ~RegisteredMapping() override {
    const ScopedContext current(gpu_);
    for (uint8_t* chunk : chunks_) (void)cudaHostUnregister(chunk);
  }

  Error Register(int64_t size_bytes, bool read_only) {
    const ScopedContext current(gpu_);
    const unsigned flags = cudaHostRegisterPortable | cudaHostRegisterMapped |
                           (read_only ? cudaHostRegisterReadOnly : 0U);
    for (int64_t begin = 0; begin < size_bytes; begin += kRegisterChunkBytes) {
      const int64_t bytes = std::min(kRegisterChunkBytes, size_bytes - begin);
      const cudaError_t error = cudaHostRegister(data() + begin, static_cast<size_t>(bytes), flags);
      if (error != cudaSuccess) return Refused(error, bytes);
      chunks_.push_back(data() + begin);
    }
    // The kernels use the host's addresses; they are the same on every platform with this
    // property, and elsewhere nothing would be right.
    void* address = nullptr;
    const cudaError_t error = cudaHostGetDevicePointer(&address, data(), 0);
    if (error != cudaSuccess) return CheckCuda(error, "cudaHostGetDevicePointer");
    if (address == data()) return {};
    return {.code = Code::kUnimplemented,
            .reason = "NOT_IMPLEMENTED",
            .message = "this platform gives registered host memory another address on the GPU",
            .metadata = {{"feature", "host addresses that differ"}}};
  }

 private:
  static Error Refused(cudaError_t error, int64_t bytes) {
    cudaGetLastError();
    return {.code = Code::kResourceExhausted,
            .reason = "LIMIT_REACHED",
            .message = "host memory: registering " + std::to_string(bytes) +
                       " bytes with the CUDA driver: " + cudaGetErrorString(error),
            .metadata = {{"requested_bytes", std::to_string(bytes)},
                         {"device_error", cudaGetErrorName(error)}}};
  }

  const Gpu gpu_;
  const std::unique_ptr<Mapping> host_;
  std::vector<uint8_t*> chunks_;
};

}  // namespace

Error ImportFile(const Gpu& gpu, int32_t fd, int64_t size_bytes,
                 std::unique_ptr<Mapping>* mapping) {
  if (size_bytes <= 0)
    return MalformedAnswer("GPU memory of " + std::to_string(size_bytes) + " bytes");
  const ScopedContext current(gpu);
  auto imported = std::make_unique<Imported>(gpu);
  if (Error error = imported->Map(fd, size_bytes); !error.ok()) return error;
  *mapping = std::make_unique<ImportedMapping>(std::move(imported));
  return {};
}

Error OpenHandle(const Gpu& gpu, const void* handle, int64_t offset_bytes, int64_t size_bytes,
                 std::unique_ptr<Mapping>* mapping) {
  cudaIpcMemHandle_t memory = {};
  std::memcpy(&memory, handle, sizeof(memory));
  const ScopedContext current(gpu);
  void* base = nullptr;
  Error error = CheckCuda(cudaIpcOpenMemHandle(&base, memory, cudaIpcMemLazyEnablePeerAccess),
                          "cudaIpcOpenMemHandle");
  if (!error.ok()) return error;
  auto opened = std::make_unique<HandleMapping>(gpu, static_cast<uint8_t*>(base), offset_bytes);
  CUdeviceptr start = 0;
  size_t bytes = 0;
  error = gpu.driver.Check(
      gpu.driver.address_range(&start, &bytes, reinterpret_cast<CUdeviceptr>(base)),
      "cuMemGetAddressRange");
  if (!error.ok()) return error;
  const auto all = static_cast<int64_t>(bytes);
  if (size_bytes <= 0 || offset_bytes < 0 || offset_bytes > all ||
      size_bytes > all - offset_bytes) {
    return MalformedAnswer(std::to_string(size_bytes) + " bytes from " +
                           std::to_string(offset_bytes) + " of an allocation of " +
                           std::to_string(all));
  }
  *mapping = std::move(opened);
  return {};
}

Error Register(const Gpu& gpu, std::unique_ptr<Mapping> host, int64_t size_bytes, bool read_only,
               std::unique_ptr<Mapping>* mapping) {
  auto registered = std::make_unique<RegisteredMapping>(gpu, std::move(host));
  if (Error error = registered->Register(size_bytes, read_only); !error.ok()) return error;
  *mapping = std::move(registered);
  return {};
}

}  // namespace kvtier::data_plane
