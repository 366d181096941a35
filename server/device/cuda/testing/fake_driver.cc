#include "server/device/cuda/testing/fake_driver.h"

namespace kvtier::testing {
namespace {

FakeDriver* fake = nullptr;

CUresult DeviceGet(CUdevice* device, int ordinal) {
  *device = ordinal;
  return CUDA_SUCCESS;
}

CUresult Retain(CUcontext* context, CUdevice) {
  *context = reinterpret_cast<CUcontext>(fake);
  return fake->Step(&fake->contexts);
}

CUresult Push(CUcontext context) {
  fake->last_pushed = context;
  ++fake->current;
  return CUDA_SUCCESS;
}

CUresult Pop(CUcontext* context) {
  *context = fake->last_pushed;
  --fake->current;
  return CUDA_SUCCESS;
}

CUresult Granularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = FakeDriver::kGranularity;
  return CUDA_SUCCESS;
}

CUresult Create(CUmemGenericAllocationHandle* handle, size_t, const CUmemAllocationProp*,
                unsigned long long) {
  *handle = 7;
  return fake->Step(&fake->allocations);
}

CUresult Release(CUmemGenericAllocationHandle) {
  --fake->allocations;
  return CUDA_SUCCESS;
}

CUresult Reserve(CUdeviceptr* address, size_t, size_t, CUdeviceptr, unsigned long long) {
  const CUresult result = fake->Step(&fake->addresses);
  if (result == CUDA_SUCCESS) *address = CUdeviceptr{1} << 46;
  return result;
}

CUresult FreeAddress(CUdeviceptr, size_t) {
  --fake->addresses;
  return CUDA_SUCCESS;
}

CUresult Map(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
  return fake->Step(&fake->mappings);
}

CUresult Unmap(CUdeviceptr, size_t) {
  --fake->mappings;
  return CUDA_SUCCESS;
}

CUresult SetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) {
  int ignored = 0;
  return fake->Step(&ignored);
}

CUresult Export(void*, CUmemGenericAllocationHandle, CUmemAllocationHandleType,
                unsigned long long) {
  return fake->Step(&fake->exports);
}

}  // namespace

FakeDriver::FakeDriver() { fake = this; }

FakeDriver::~FakeDriver() { fake = nullptr; }

CUresult FakeDriver::Step(int* count) {
  if (++calls == fail_at) return failure;
  ++*count;
  return CUDA_SUCCESS;
}

std::shared_ptr<CudaDevice> FakeDriver::MakeDevice() const {
  CudaDriver driver;
  driver.device_get = DeviceGet;
  driver.primary_context_retain = Retain;
  driver.context_push = Push;
  driver.context_pop = Pop;
  driver.memory_create = Create;
  driver.memory_release = Release;
  driver.address_reserve = Reserve;
  driver.address_free = FreeAddress;
  driver.memory_map = Map;
  driver.memory_unmap = Unmap;
  driver.memory_set_access = SetAccess;
  driver.allocation_granularity = Granularity;
  driver.memory_export = Export;
  return std::make_shared<CudaDevice>(DeviceInfo{.uuid = "GPU-fake",
                                                 .name = "fake",
                                                 .kind = BackendKind::kCuda,
                                                 .memory_bytes = int64_t{1} << 20},
                                      /*ordinal=*/0, driver, health);
}

}  // namespace kvtier::testing
