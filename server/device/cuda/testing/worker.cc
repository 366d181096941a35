#include "server/device/cuda/testing/worker.h"

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
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

cudaEvent_t NewSharedEvent() {
  cudaEvent_t event = nullptr;
  Must(cudaEventCreateWithFlags(&event, cudaEventInterprocess | cudaEventDisableTiming), "event");
  return event;
}

void PrintHandle(cudaEvent_t event) {
  cudaIpcEventHandle_t ipc = {};
  Must(cudaIpcGetEventHandle(&ipc, event), "export event");
  std::cout << Hex(&ipc, sizeof(ipc)) << std::endl;
}

int* NewFlag() {
  void* flag = nullptr;
  Must(cudaHostAlloc(&flag, sizeof(int), cudaHostAllocMapped), "flag");
  *static_cast<int*>(flag) = 0;
  return static_cast<int*>(flag);
}

void Read(size_t bytes, const std::string& handle, int64_t offset) {
  uint8_t* const data = handle == "fd" ? MapDescriptor(bytes) : MapIpc(handle, offset);
  std::vector<uint8_t> seen(bytes);
  Must(cudaMemcpy(seen.data(), data, bytes, cudaMemcpyDeviceToHost), "read");
  std::cout << int{seen.front()} << " " << int{seen.back()} << std::endl;
  Must(cudaMemset(data + bytes - 1, 0x77, 1), "write");
  Must(cudaDeviceSynchronize(), "synchronize");
}

// On one stream it writes 0xa1 after a long while, and says so with its event. On another it
// reads behind the daemon's event, and only then lets the first one go on.
void Order(const std::string& handle) {
  constexpr size_t kBytes = 4096;
  cudaIpcEventHandle_t ipc = {};
  if (!FromHex(handle, &ipc, sizeof(ipc))) exit(2);
  uint8_t* const data = MapDescriptor(kBytes);
  cudaEvent_t daemon_event = nullptr;
  Must(cudaIpcOpenEventHandle(&daemon_event, ipc), "open event");
  const cudaEvent_t own_event = NewSharedEvent();
  cudaStream_t const writing = NewStream(), reading = NewStream();
  int* const released = NewFlag();
  Must(Spin(released, 10, writing), "spin");
  Must(cudaMemsetAsync(data, 0xa1, kBytes, writing), "write");
  Must(cudaEventRecord(own_event, writing), "record");
  PrintHandle(own_event);

  std::string line;
  std::getline(std::cin, line);
  void* seen = nullptr;
  Must(cudaHostAlloc(&seen, kBytes, cudaHostAllocDefault), "host memory");
  Must(cudaStreamWaitEvent(reading, daemon_event, 0), "wait");
  Must(cudaMemcpyAsync(seen, data, kBytes, cudaMemcpyDeviceToHost, reading), "read");
  std::cout << (cudaStreamQuery(reading) == cudaErrorNotReady ? "held" : "done") << std::endl;
  *const_cast<volatile int*>(released) = 1;
  Must(cudaStreamSynchronize(reading), "synchronize");
  std::cout << int{static_cast<uint8_t*>(seen)[kBytes - 1]} << std::endl;
}

void Hang() {
  cudaStream_t const stream = NewStream();
  const cudaEvent_t event = NewSharedEvent();
  Must(Spin(NewFlag(), 30, stream), "spin");
  Must(cudaEventRecord(event, stream), "record");
  PrintHandle(event);
  std::string line;
  std::getline(std::cin, line);
}

}  // namespace

int RunWorker(const std::vector<std::string>& arguments) {
  if (arguments.size() == 4 && arguments[0] == "read") {
    Read(std::stoull(arguments[1]), arguments[2], std::stoll(arguments[3]));
  } else if (arguments.size() == 2 && arguments[0] == "order") {
    Order(arguments[1]);
  } else if (arguments.size() == 1 && arguments[0] == "hang") {
    Hang();
  } else {
    std::cout << "no such role" << std::endl;
    return 2;
  }
  return 0;
}

}  // namespace kvtier::testing
