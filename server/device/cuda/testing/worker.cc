#include "server/device/cuda/testing/worker.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "server/device/cuda/testing/child_process.h"
#include "server/device/cuda/testing/spin.h"

namespace kvtier::testing {
namespace {

// A worker that fails says where, and ends: its test shows that line.
void Must(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::cout << what << ": " << cudaGetErrorName(error) << std::endl;
  exit(1);
}
void Must(CUresult result, const char* what) { Must(static_cast<cudaError_t>(result), what); }

template <typename Function>
Function* Driver(const char* name) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  Must(cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &result), name);
  return reinterpret_cast<Function*>(address);
}
#define DRIVER(function) Driver<decltype(function)>(#function)

// Maps the allocation whose descriptor is number 3.
uint8_t* MapDescriptor(size_t bytes) {
  CUmemAllocationProp properties = {};
  properties.type = CU_MEM_ALLOCATION_TYPE_PINNED;
  properties.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
  properties.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  size_t unit = 0;
  Must(DRIVER(cuMemGetAllocationGranularity)(&unit, &properties,
                                             CU_MEM_ALLOC_GRANULARITY_RECOMMENDED),
       "granularity");
  const size_t mapped = (bytes + unit - 1) / unit * unit;
  CUmemGenericAllocationHandle handle = 0;
  Must(DRIVER(cuMemImportFromShareableHandle)(
           &handle, reinterpret_cast<void*>(uintptr_t{ChildProcess::kDescriptor}),
           CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR),
       "import");
  CUdeviceptr address = 0;
  Must(DRIVER(cuMemAddressReserve)(&address, mapped, 0, 0, 0), "reserve");
  Must(DRIVER(cuMemMap)(address, mapped, 0, handle, 0), "map");
  CUmemAccessDesc access = {};
  access.location = properties.location;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  Must(DRIVER(cuMemSetAccess)(address, mapped, &access, 1), "access");
  return reinterpret_cast<uint8_t*>(address);
}

uint8_t* MapIpc(const std::string& handle, int64_t offset) {
  cudaIpcMemHandle_t ipc = {};
  if (!FromHex(handle, &ipc, sizeof(ipc))) exit(2);
  void* base = nullptr;
  Must(cudaIpcOpenMemHandle(&base, ipc, cudaIpcMemLazyEnablePeerAccess), "open memory");
  return static_cast<uint8_t*>(base) + offset;
}

cudaStream_t NewStream() {
  cudaStream_t stream = nullptr;
  Must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  return stream;
}

void* NewHostMemory(size_t bytes) {
  void* memory = nullptr;
  Must(cudaHostAlloc(&memory, bytes, cudaHostAllocMapped), "host memory");
  std::memset(memory, 0, bytes);
  return memory;
}

void Read(uint8_t* data, size_t bytes) {
  std::vector<uint8_t> seen(bytes);
  Must(cudaMemcpy(seen.data(), data, bytes, cudaMemcpyDeviceToHost), "read");
  std::cout << int{seen.front()} << " " << int{seen.back()} << std::endl;
  Must(cudaMemset(data + bytes - 1, 0x77, 1), "write");
  Must(cudaDeviceSynchronize(), "synchronize");
}

// All rounds are enqueued at once. Each begins with a while in which a daemon that did not wait
// would read the round before.
void Order(uint8_t* data, size_t bytes, int rounds) {
  const auto own_word = reinterpret_cast<CUdeviceptr>(data + bytes);
  const CUdeviceptr daemons_word = own_word + sizeof(int32_t);
  cudaStream_t const stream = NewStream();
  auto* const seen = static_cast<uint8_t*>(NewHostMemory(bytes * static_cast<size_t>(rounds)));
  const auto* const never = static_cast<int*>(NewHostMemory(sizeof(int)));
  Must(Spin(never, 1e-6, stream), "load the kernel");
  Must(cudaStreamSynchronize(stream), "synchronize");
  auto* const write_word = DRIVER(cuStreamWriteValue32);
  auto* const wait_word = DRIVER(cuStreamWaitValue32);
  std::cout << "ready" << std::endl;
  std::string line;
  std::getline(std::cin, line);
  for (int round = 1; round <= rounds; ++round) {
    Must(Spin(never, rounds == 1 ? 0.5 : 1e-4, stream), "spin");
    Must(cudaMemsetAsync(data, 2 * round & 0xff, bytes, stream), "write");
    Must(write_word(stream, own_word, static_cast<cuuint32_t>(round), 0), "signal");
    Must(wait_word(stream, daemons_word, static_cast<cuuint32_t>(round), CU_STREAM_WAIT_VALUE_GEQ),
         "wait");
    Must(cudaMemcpyAsync(seen + bytes * static_cast<size_t>(round - 1), data, bytes,
                         cudaMemcpyDeviceToHost, stream),
         "read");
  }
  Must(cudaStreamSynchronize(stream), "synchronize");
  int wrong = 0;
  for (int round = 1; round <= rounds; ++round) {
    const uint8_t* const first = seen + bytes * static_cast<size_t>(round - 1);
    if (std::count(first, first + bytes, static_cast<uint8_t>(2 * round + 1)) !=
        static_cast<int64_t>(bytes)) {
      ++wrong;
    }
  }
  std::cout << "wrong rounds: " << wrong << std::endl;
}

void Hang(uint8_t* data, size_t bytes) {
  cudaStream_t const stream = NewStream();
  Must(Spin(static_cast<int*>(NewHostMemory(sizeof(int))), 30, stream), "spin");
  Must(DRIVER(cuStreamWriteValue32)(stream, reinterpret_cast<CUdeviceptr>(data + bytes), 1, 0),
       "signal");
  std::cout << "ready" << std::endl;
  std::string line;
  std::getline(std::cin, line);
}

}  // namespace

int RunWorker(const std::vector<std::string>& arguments) {
  if (arguments.size() < 4) return 2;
  const std::string& role = arguments[0];
  const size_t bytes = std::stoull(arguments[1]);
  const std::string& handle = arguments[arguments.size() - 2];
  uint8_t* const data =
      handle == "fd" ? MapDescriptor(bytes) : MapIpc(handle, std::stoll(arguments.back()));
  if (role == "read") Read(data, bytes);
  if (role == "order") Order(data, bytes / 2, std::stoi(arguments[2]));
  if (role == "hang") Hang(data, bytes / 2);
  return 0;
}

}  // namespace kvtier::testing
