#include "server/device/cuda/testing/gpu_test.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "server/core/error.h"
#include "server/device/cuda/cuda_backend.h"
#include "server/device/cuda/testing/child_process.h"
#include "server/device/cuda/testing/worker.h"

namespace kvtier::testing {
namespace {

// Not through the runtime, which might make a context for it. The driver is loaded already.
template <typename Function>
Function* Driver(const char* name) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  return library == nullptr ? nullptr : reinterpret_cast<Function*>(dlsym(library, name));
}

}  // namespace

void GpuTest::Make(Transport transport) {
  backend_.reset();
  auto backend = MakeCudaBackend({.transport = transport});
  if (ErrorReasonOf(backend.status()) == "DEVICE_UNKNOWN") GTEST_SKIP() << backend.status();
  ASSERT_TRUE(backend.ok()) << backend.status();
  backend_ = *std::move(backend);
  uuid_ = backend_->Devices()[0].uuid;
}

std::unique_ptr<DeviceMemory> GpuTest::Allocate(int64_t bytes) {
  auto memory = backend_->Allocate(uuid_, "test", bytes);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return memory.ok() ? *std::move(memory) : nullptr;
}

std::unique_ptr<DeviceStream> GpuTest::Stream() {
  auto stream = backend_->CreateStream(uuid_);
  EXPECT_TRUE(stream.ok()) << stream.status();
  return stream.ok() ? *std::move(stream) : nullptr;
}

std::vector<uint8_t> GpuTest::Contents(DeviceStream& stream, const DeviceMemory& memory) {
  std::vector<uint8_t> bytes(static_cast<size_t>(memory.size_bytes()), 0xee);
  EXPECT_TRUE(stream.Read(bytes.data(), memory.data(), memory.size_bytes()).ok());
  const absl::Status status = Drain(stream);
  EXPECT_TRUE(status.ok()) << status;
  return bytes;
}

int64_t FreeBytes() {
  size_t free = 0, total = 0;
  EXPECT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  return static_cast<int64_t>(free);
}

bool AnyContext() {
  auto* const state = Driver<decltype(cuDevicePrimaryCtxGetState)>("cuDevicePrimaryCtxGetState");
  int count = 0;
  if (state == nullptr || cudaGetDeviceCount(&count) != cudaSuccess) return false;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    unsigned int flags = 0;
    int active = 0;
    EXPECT_EQ(state(ordinal, &flags, &active), CUDA_SUCCESS);
    if (active != 0) return true;
  }
  return false;
}

void* CurrentContext() {
  auto* const current = Driver<decltype(cuCtxGetCurrent)>("cuCtxGetCurrent");
  CUcontext context = nullptr;
  if (current != nullptr) (void)current(&context);
  return context;
}

std::string RunInAChild(const std::string& test) {
  ChildProcess child({absl::StrCat("--gtest_filter=", test), "--gtest_also_run_disabled_tests=1"});
  const std::string said = child.ReceiveAll();
  // No end: it hangs.
  child.Kill();
  return said.find("[  PASSED  ] 1 test.") != std::string::npos ? "" : "failed: " + said;
}

}  // namespace kvtier::testing

int main(int argc, char** argv) {
  const std::vector<std::string> arguments(argv + 1, argv + argc);
  if (!arguments.empty() && arguments[0] == "--worker") {
    return kvtier::testing::RunWorker({arguments.begin() + 1, arguments.end()});
  }
  ::testing::InitGoogleMock(&argc, argv);
  return RUN_ALL_TESTS();
}
