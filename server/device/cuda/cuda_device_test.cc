// What needs no GPU: errors, contexts, and steps that are undone.

#include "server/device/cuda/cuda_device.h"

#include <sys/mman.h>

#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/core/shared_memory.h"
#include "server/device/cuda/cuda_backend.h"
#include "server/device/cuda/cuda_memory.h"
#include "server/device/cuda/host_registry.h"
#include "server/device/cuda/testing/fake_driver.h"

namespace kvtier {
namespace {

using ::kvtier::testing::FakeDriver;
using ::testing::HasSubstr;

bool HasGpu() {
  int count = 0;
  const bool found = cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
  cudaGetLastError();
  return found;
}

// The runtime, which is no fake, must refuse what is asked of it.
#define SKIP_WITH_A_GPU() \
  if (HasGpu()) GTEST_SKIP() << "on purpose without a GPU: its driver is a fake here"

// D22: no driver, or no GPU.
TEST(CudaBackendWithoutGpu, D22_SaysWhyInOneLine) {
  SKIP_WITH_A_GPU();
  const absl::Status status = MakeCudaBackend({}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReasonOf(status), "DEVICE_UNKNOWN");
  const std::string message(status.message());
  EXPECT_THAT(message, HasSubstr("no CUDA device: cudaError"));
  EXPECT_THAT(message, HasSubstr("driver"));
  EXPECT_EQ(message.find('\n'), std::string::npos);
}

TEST(CudaHealth, TheFirstLossIsForGood) {
  CudaHealth health;
  EXPECT_TRUE(health.status().ok());
  health.Lose(cudaErrorIllegalAddress);
  health.Lose(cudaErrorECCUncorrectable);
  const absl::Status status = health.status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(status), "DEVICE_LOST");
  EXPECT_EQ(ErrorMetadataOf(status)["device_error"], "cudaErrorIllegalAddress");
  EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA context lost"));
}

TEST(CudaDevice, K18_ErrorsThatPassAreNamed) {
  FakeDriver fake;
  const auto device = fake.MakeDevice();
  EXPECT_TRUE(device->Check(cudaSuccess, "x").ok());
  const absl::Status status = device->Check(cudaErrorLaunchOutOfResources, "swap-in");
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(ErrorReasonOf(status), "DEVICE_ERROR");
  EXPECT_EQ(ErrorMetadataOf(status)["device_error"], "cudaErrorLaunchOutOfResources");
  EXPECT_EQ(ErrorMetadataOf(status)["device_uuid"], "GPU-fake");
  EXPECT_THAT(std::string(status.message()), HasSubstr("swap-in"));
  EXPECT_TRUE(device->health().status().ok());
}

TEST(CudaDevice, D23_AfterALossEveryCallFails) {
  FakeDriver fake;
  const auto device = fake.MakeDevice();
  ASSERT_TRUE(device->Activate().ok());
  EXPECT_EQ(ErrorReasonOf(device->Check(cudaErrorIllegalAddress, "swap-in")), "DEVICE_LOST");
  const int calls = fake.calls;
  for (const absl::Status& status :
       {device->health().status(), device->Activate(), ScopedContext(*device).status(),
        device->Check(cudaErrorInvalidValue, "another"), AllocateShareable(device, "x", 1).status(),
        AllocateLegacy(device, "x", 1).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ErrorReasonOf(status), "DEVICE_LOST");
  }
  EXPECT_EQ(fake.calls, calls) << "and the driver is not asked for anything";
  EXPECT_EQ(fake.current, 0);
}

TEST(CudaDevice, TheContextIsMadeOnceAndCurrentForAScope) {
  FakeDriver fake;
  const auto device = fake.MakeDevice();
  EXPECT_FALSE(ScopedContext(*device).status().ok()) << "there is none yet";
  EXPECT_EQ(fake.contexts, 0);
  ASSERT_TRUE(device->Activate().ok());
  ASSERT_TRUE(device->Activate().ok());
  EXPECT_EQ(fake.contexts, 1);
  {
    const ScopedContext context(*device);
    EXPECT_TRUE(context.current());
    EXPECT_TRUE(context.status().ok());
    EXPECT_EQ(fake.current, 1);
  }
  EXPECT_EQ(fake.current, 0);
}

TEST(CudaDevice, AContextMayFindNoMemory) {
  FakeDriver fake;
  const auto device = fake.MakeDevice();
  fake.fail_at = 1;
  EXPECT_EQ(ErrorReasonOf(device->Activate()), "DEVICE_MEMORY_EXHAUSTED");
  EXPECT_TRUE(device->Activate().ok()) << "the next try may succeed";
}

// Create, reserve, map, set access; then the zeroing, which is the runtime's and fails here.
TEST(CudaMemory, EveryFailedStepIsUndone) {
  SKIP_WITH_A_GPU();
  constexpr int kSteps = 4;
  for (const CUresult failure : {CUDA_ERROR_OUT_OF_MEMORY, CUDA_ERROR_INVALID_VALUE}) {
    for (int step = 1; step <= kSteps + 1; ++step) {
      FakeDriver fake;
      const auto device = fake.MakeDevice();
      ASSERT_TRUE(device->Activate().ok());
      fake.calls = 0;
      fake.fail_at = step;
      fake.failure = failure;
      const absl::Status status = AllocateShareable(device, "hot buffers", 5000).status();
      if (failure == CUDA_ERROR_OUT_OF_MEMORY && step <= kSteps) {
        EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << step;
        EXPECT_EQ(ErrorReasonOf(status), "DEVICE_MEMORY_EXHAUSTED");
        EXPECT_EQ(ErrorMetadataOf(status)["requested_bytes"], "5000");
        EXPECT_EQ(ErrorMetadataOf(status)["device_uuid"], "GPU-fake");
      } else {
        EXPECT_EQ(ErrorReasonOf(status), "DEVICE_ERROR") << step;
      }
      EXPECT_THAT(std::string(status.message()), HasSubstr("hot buffers"));
      EXPECT_EQ(fake.calls, std::min(step, kSteps));
      EXPECT_EQ(fake.allocations, 0) << step;
      EXPECT_EQ(fake.addresses, 0) << step;
      EXPECT_EQ(fake.mappings, 0) << step;
      EXPECT_EQ(fake.current, 0) << step;
      EXPECT_TRUE(device->health().status().ok());
    }
  }
}

class HostRegistryTest : public ::testing::Test {
 protected:
  SharedMemory memory_ = *SharedMemory::Create("host", 1 << 20);
  std::shared_ptr<HostRegistry> registry_ = std::make_shared<HostRegistry>();
  FakeDriver fake_;
};

TEST_F(HostRegistryTest, RemembersRangesWithoutAnyDevice) {
  auto first = registry_->Add(memory_.data(), 4096);
  ASSERT_TRUE(first.ok());
  auto third = registry_->Add(memory_.data() + 8192, 4096);
  ASSERT_TRUE(third.ok());
  for (const auto& [offset, bytes] : {std::pair{0, 1}, {4095, 1}, {0, 8193}, {4096, 4097}}) {
    const absl::Status status = registry_->Add(memory_.data() + offset, bytes).status();
    EXPECT_EQ(ErrorReasonOf(status), "DEVICE_ERROR") << offset << " " << bytes;
  }
  EXPECT_TRUE(registry_->Add(memory_.data() + 4096, 4096).ok()) << "between them";
  EXPECT_EQ(registry_->Add(nullptr, 4096).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(registry_->Add(memory_.data(), -1).status().code(), absl::StatusCode::kInvalidArgument);
  first->reset();
  EXPECT_TRUE(registry_->Add(memory_.data(), 4096).ok());
  EXPECT_EQ(fake_.current, 0);
}

// Where the driver registers nothing, a device does not come into use, and nothing stays.
TEST_F(HostRegistryTest, WhatTheDriverRefusesLeavesNothing) {
  SKIP_WITH_A_GPU();
  const auto device = fake_.MakeDevice();
  ASSERT_TRUE(device->Activate().ok());
  auto range = registry_->Add(memory_.data(), 4096);
  ASSERT_TRUE(range.ok());
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = registry_->Activate(device);
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ErrorMetadataOf(status)["requested_bytes"], "4096");
    EXPECT_THAT(std::string(status.message()), HasSubstr("host memory of 4096 bytes"));
  }
  EXPECT_TRUE(registry_->Add(memory_.data() + 4096, 4096).ok()) << "no device is in use";
  range->reset();
  ASSERT_TRUE(registry_->Activate(device).ok()) << "nothing is to be registered";
  for (int i = 0; i < 2; ++i) {
    const absl::Status status = registry_->Add(memory_.data(), 4096).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
  }
  EXPECT_EQ(fake_.current, 0);
}

// SIGTERM while a first worker waits until a large pool is registered.
TEST_F(HostRegistryTest, D18_NothingIsRegisteredAfterAStop) {
  const auto device = fake_.MakeDevice();
  ASSERT_TRUE(device->Activate().ok());
  auto range = registry_->Add(memory_.data(), 4096);
  ASSERT_TRUE(range.ok());
  registry_->Stop();
  for (const absl::Status& status :
       {registry_->Activate(device), registry_->Add(memory_.data() + 4096, 4096).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
    EXPECT_EQ(ErrorReasonOf(status), "DRAINING") << status;
  }
  range->reset();
  EXPECT_TRUE(registry_->Activate(device).ok()) << "nothing is to be registered";
}

TEST_F(HostRegistryTest, ARegistrationMayOutliveItsRegistry) {
  auto range = registry_->Add(memory_.data(), 4096);
  registry_.reset();
  range->reset();
}

}  // namespace
}  // namespace kvtier
