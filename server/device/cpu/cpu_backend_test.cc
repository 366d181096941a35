// What is particular to the CPU backend; the conformance suite has the rest.

#include "server/device/cpu/cpu_backend.h"

#include <sys/resource.h>

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/core/thread.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::unique_ptr<DeviceBackend> Make(const CpuBackendOptions& options = {}) {
  return *MakeCpuBackend(options);
}

TEST(CpuBackendTest, OptionsOutOfRange) {
  for (const int threads : {0, -1, 65}) {
    const absl::Status status = MakeCpuBackend({.threads = threads}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(ErrorMetadataOf(status).at("value"), std::to_string(threads));
  }
  EXPECT_FALSE(MakeCpuBackend({.memory_bytes_max = -1}).ok());
  EXPECT_TRUE(MakeCpuBackend({.threads = 64}).ok());
}

TEST(CpuBackendTest, OneDevice) {
  const std::vector<DeviceInfo> devices = Make({.memory_bytes_max = 5000})->Devices();
  ASSERT_EQ(devices.size(), 1u);
  EXPECT_EQ(devices[0].uuid, "CPU-0");
  EXPECT_EQ(devices[0].kind, BackendKind::kCpu);
  EXPECT_EQ(devices[0].memory_bytes, 5000);
}

TEST(CpuBackendTest, TheMemoryLimitCountsLivingAllocations) {
  auto backend = Make({.memory_bytes_max = 10000});
  auto first = *backend->Allocate(kCpuDeviceUuid, "first", 6000);
  const absl::Status status = backend->Allocate(kCpuDeviceUuid, "second", 4001).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReasonOf(status), "DEVICE_MEMORY_EXHAUSTED");
  EXPECT_THAT(std::string(status.message()), HasSubstr("second of 4001 bytes"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("10000"));
  EXPECT_TRUE(backend->Allocate(kCpuDeviceUuid, "second", 4000).ok());
  first.reset();
  EXPECT_TRUE(backend->Allocate(kCpuDeviceUuid, "third", 10000).ok()) << "all came back";
}

TEST(CpuBackendTest, WhatItMadeOutlivesIt) {
  std::vector<uint8_t> host(4096);
  auto backend = Make({.memory_bytes_max = 4096});
  auto memory = *backend->Allocate(kCpuDeviceUuid, "m", 4096);
  auto stream = *backend->CreateStream(kCpuDeviceUuid);
  auto registration = *backend->RegisterHost(host.data(), 4096);
  backend.reset();
  EXPECT_TRUE(stream->Write(memory->data(), "x", 1).ok());
  stream.reset();
  EXPECT_EQ(memory->data()[0], 'x');
}

TEST(CpuBackendTest, ExportsAreTheWholeMemoryFromOffsetZero) {
  auto memory = *Make()->Allocate(kCpuDeviceUuid, "m", 4096);
  const MemoryHandle handle = *memory->Export();
  EXPECT_EQ(handle.transport, MemoryHandle::Transport::kPosixFd);
  EXPECT_TRUE(handle.fd.valid());
  EXPECT_EQ(handle.offset_bytes, 0);
}

TEST(CpuBackendTest, NoDescriptorLeftIsAnError) {
  auto memory = *Make()->Allocate(kCpuDeviceUuid, "m", 4096);
  rlimit before = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none = {.rlim_cur = 0, .rlim_max = before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const absl::Status exported = memory->Export().status();
  const absl::Status allocated = Make()->Allocate(kCpuDeviceUuid, "n", 4096).status();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(exported.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReasonOf(exported), "LIMIT_REACHED");
  EXPECT_EQ(ErrorReasonOf(allocated), "DEVICE_MEMORY_EXHAUSTED");
  EXPECT_TRUE(memory->Export().ok());
}

TEST(CpuBackendTest, OverlappingRegistrationsAreRefused) {
  auto backend = Make();
  std::vector<uint8_t> host(1000);
  const auto registers = [&](int64_t first, int64_t bytes) {
    return backend->RegisterHost(host.data() + first, bytes).status();
  };
  auto middle = *backend->RegisterHost(host.data() + 400, 200);
  for (const auto& [first, bytes] : std::vector<std::pair<int64_t, int64_t>>{
           {400, 200}, {300, 101}, {599, 10}, {450, 10}, {0, 1000}, {399, 2}}) {
    EXPECT_EQ(ErrorReasonOf(registers(first, bytes)), "DEVICE_ERROR") << first << " " << bytes;
  }
  EXPECT_TRUE(registers(0, 400).ok());
  EXPECT_TRUE(registers(600, 400).ok());
  middle.reset();
  EXPECT_TRUE(registers(0, 1000).ok());
}

class CpuStepperTest : public ::testing::Test {
 protected:
  const std::shared_ptr<CpuStepper> stepper_ = std::make_shared<CpuStepper>();
  const std::unique_ptr<DeviceBackend> backend_ = Make({.stepper = stepper_});
};

TEST_F(CpuStepperTest, NothingMovesByItself) {
  auto stream = *backend_->CreateStream(kCpuDeviceUuid);
  std::vector<int> order;
  for (int i = 0; i < 3; ++i) {
    EXPECT_TRUE(stream->Notify([&, i](const absl::Status&) { order.push_back(i); }).ok());
  }
  EXPECT_EQ(stepper_->pending(), 3);
  EXPECT_TRUE(order.empty());
  EXPECT_TRUE(stepper_->Step());
  EXPECT_THAT(order, ElementsAre(0));
  EXPECT_EQ(stepper_->pending(), 2);
  EXPECT_EQ(stepper_->RunAll(), 2);
  EXPECT_THAT(order, ElementsAre(0, 1, 2));
  EXPECT_FALSE(stepper_->Step());
  EXPECT_EQ(stepper_->RunAll(), 0);
}

TEST_F(CpuStepperTest, StreamsByNumber) {
  auto first = *backend_->CreateStream(kCpuDeviceUuid);
  auto second = *backend_->CreateStream(kCpuDeviceUuid);
  std::string order;
  EXPECT_TRUE(first->Notify([&](const absl::Status&) { order += 'a'; }).ok());
  EXPECT_TRUE(second->Notify([&](const absl::Status&) { order += 'b'; }).ok());
  EXPECT_TRUE(first->Notify([&](const absl::Status&) { order += 'c'; }).ok());
  EXPECT_TRUE(stepper_->Step(1));
  EXPECT_FALSE(stepper_->Step(1));
  EXPECT_FALSE(stepper_->Step(2));
  EXPECT_FALSE(stepper_->Step(-1));
  stepper_->RunAll();
  EXPECT_EQ(order, "bac");
  first.reset();
  EXPECT_FALSE(stepper_->Step(0));
  EXPECT_EQ(stepper_->pending(0), 0);
}

TEST_F(CpuStepperTest, AStreamThatWaitsForANumberStandsStill) {
  auto first = *backend_->CreateStream(kCpuDeviceUuid);
  auto second = *backend_->CreateStream(kCpuDeviceUuid);
  int32_t word = 0;
  bool passed = false;
  EXPECT_TRUE(first->WaitWord(&word, 1).ok());
  EXPECT_TRUE(first->Notify([&](const absl::Status&) { passed = true; }).ok());
  EXPECT_FALSE(stepper_->Step(0));
  EXPECT_EQ(stepper_->RunAll(), 0);
  EXPECT_EQ(stepper_->pending(0), 2);
  EXPECT_TRUE(second->SignalWord(&word, 1).ok());
  EXPECT_FALSE(stepper_->Step(0));
  EXPECT_TRUE(stepper_->Step(1));
  EXPECT_TRUE(stepper_->Step(0)) << "the wait";
  EXPECT_FALSE(passed);
  EXPECT_TRUE(stepper_->Step(0)) << "the rest";
  EXPECT_TRUE(passed);
}

TEST_F(CpuStepperTest, DestructionDoesWhatIsLeft) {
  bool done = false;
  {
    auto stream = *backend_->CreateStream(kCpuDeviceUuid);
    EXPECT_TRUE(stream->Notify([&](const absl::Status&) { done = true; }).ok());
  }
  EXPECT_TRUE(done);
}

TEST_F(CpuStepperTest, StepsOfSeveralThreadsDoNotOverlap) {
  auto stream = *backend_->CreateStream(kCpuDeviceUuid);
  std::atomic<int> running = 0;
  int done = 0;  // unguarded on purpose: operations of one stream never run at once
  constexpr int kOperations = 100;
  for (int i = 0; i < kOperations; ++i) {
    EXPECT_TRUE(stream
                    ->Notify([&](const absl::Status&) {
                      EXPECT_EQ(++running, 1);
                      // Time for another thread to come in, if it could. On a busy machine each
                      // of these lasts for as long as others have the processor.
                      for (int k = 0; k < 3; ++k) std::this_thread::yield();
                      ++done;
                      --running;
                    })
                    .ok());
  }
  {
    std::vector<Thread> threads;
    for (int t = 0; t < 3; ++t) {
      threads.push_back(*Thread::Start("step", [&] {
        while (stepper_->Step()) {
        }
      }));
    }
  }
  EXPECT_EQ(done, kOperations);
}

}  // namespace
}  // namespace kvtier
