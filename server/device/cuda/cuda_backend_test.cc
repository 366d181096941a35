// The CUDA backend on a GPU: memory that comes back, errors that pass, contexts.

#include "server/device/cuda/cuda_backend.h"

#include <cuda_runtime_api.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/core/shared_memory.h"
#include "server/core/thread.h"
#include "server/device/cuda/testing/gpu_test.h"

namespace kvtier {
namespace {

using ::kvtier::testing::AnyContext;
using ::kvtier::testing::CurrentContext;
using ::kvtier::testing::FreeBytes;
using ::kvtier::testing::GpuTest;
using ::kvtier::testing::RunInAChild;
using ::testing::HasSubstr;

constexpr int64_t kMiB = int64_t{1} << 20;
constexpr int64_t kGiB = int64_t{1} << 30;

class CudaBackendTest : public GpuTest {
 protected:
  // Something of everything, and the end of it.
  void UseAll() {
    SharedMemory host = *SharedMemory::Create("host", 4 * kMiB);
    auto registration = backend_->RegisterHost(host.data(), host.size_bytes());
    ASSERT_TRUE(registration.ok()) << registration.status();
    for (int i = 0; i < 2; ++i) {
      auto stream = Stream();
      auto small = Allocate(5000), large = Allocate(64 * kMiB), owner = Allocate(4096),
           lru = Allocate(4096);
      ASSERT_TRUE(small->Export().ok());
      auto* const word = reinterpret_cast<int32_t*>(small->data());
      ASSERT_TRUE(stream->SignalWord(word, 7).ok());
      ASSERT_TRUE(stream->WaitWord(word, 7).ok());
      const GroupShape shape = {.top_k = 64,
                                .hot_size = 64,
                                .region_count = 4,
                                .region_stride = RegionStride(64, 1),
                                .block_size = 16,
                                .slot_count = 256,
                                .max_blocks = 16};
      const GroupState state = {.owner = reinterpret_cast<int32_t*>(owner->data()),
                                .lru = reinterpret_cast<int16_t*>(lru->data())};
      const int32_t block = 3;
      // Before any swap-in: the scratch memory is taken by whoever needs it first.
      EXPECT_TRUE(
          stream->Invalidate({.shape = shape, .state = state, .blocks = &block, .block_count = 1})
              .ok());
      EXPECT_TRUE(stream->ResetRegion({.shape = shape, .state = state, .region = 3}).ok());
      const std::vector<uint8_t> bytes(64 * kMiB, 0x5a);
      EXPECT_TRUE(stream->Write(large->data(), bytes.data(), 64 * kMiB).ok());
      EXPECT_EQ(Contents(*stream, *large), bytes);
      EXPECT_EQ(Contents(*stream, *owner)[0], 0);
    }
  }
};

TEST_F(CudaBackendTest, WhatIsDestroyedGoesBackToTheDevice) {
  for (const Transport transport : {Transport::kCudaFd, Transport::kCudaIpc}) {
    Make(transport);
    UseAll();  // what CUDA makes once and keeps
    const int64_t before = FreeBytes();
    for (int i = 0; i < 3; ++i) UseAll();
    EXPECT_EQ(FreeBytes(), before) << "transport " << static_cast<int>(transport);
    backend_.reset();
    EXPECT_EQ(FreeBytes(), before);
  }
}

TEST_F(CudaBackendTest, OutOfMemoryLeaksNothingAndPasses) {
  for (const Transport transport : {Transport::kCudaFd, Transport::kCudaIpc}) {
    Make(transport);
    Allocate(1);
    const int64_t before = FreeBytes();
    auto most = Allocate(before - 2 * kGiB);
    ASSERT_NE(most, nullptr);
    const int64_t left = FreeBytes();
    EXPECT_LT(left, 3 * kGiB);
    const absl::Status status = backend_->Allocate(uuid_, "hot buffers", 4 * kGiB).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_EQ(ErrorReasonOf(status), "DEVICE_MEMORY_EXHAUSTED");
    EXPECT_EQ(ErrorMetadataOf(status)["requested_bytes"], absl::StrCat(4 * kGiB));
    EXPECT_EQ(ErrorMetadataOf(status)["device_uuid"], uuid_);
    EXPECT_THAT(std::string(status.message()), HasSubstr("hot buffers"));
    // The driver may give back a granule of its own meanwhile.
    EXPECT_GE(FreeBytes(), left);
    {
      auto stream = Stream();
      auto smaller = Allocate(64 * kMiB);
      ASSERT_NE(smaller, nullptr);
      EXPECT_EQ(Contents(*stream, *smaller), std::vector<uint8_t>(64 * kMiB, 0));
    }
    // At least: CUDA may have given back what it took for something else.
    EXPECT_GE(FreeBytes(), left);
    most.reset();
    EXPECT_GE(FreeBytes(), before);
  }
}

TEST_F(CudaBackendTest, K18_ARefusedLaunchLeavesTheStreamUsable) {
  auto stream = Stream();
  auto memory = Allocate(4096);
  const GroupShape shape = {.top_k = 4,
                            .hot_size = 8,
                            .region_count = 1,
                            .region_stride = RegionStride(8, 1),
                            .block_size = 4,
                            .slot_count = 16,
                            .max_blocks = 4};
  for (int i = 0; i < 3; ++i) {
    for (const absl::Status& status :
         {stream->SwapIn({.shape = shape, .num_rows = 1}),  // no state
          stream->SwapIn({.shape = {}, .num_rows = 1}),     // no shape
          stream->Backup({.shape = shape, .num_rows = 1}),  // no source
          stream->ReplayPlan({.shape = shape, .num_rows = 1}),
          stream->ResetRegion({.shape = shape, .region = 1})}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
      EXPECT_EQ(ErrorReasonOf(status), "DEVICE_ERROR");
      EXPECT_EQ(ErrorMetadataOf(status)["device_error"], "cudaErrorInvalidValue");
    }
    EXPECT_TRUE(Drain(*stream).ok());
    EXPECT_EQ(Contents(*stream, *memory), std::vector<uint8_t>(4096, 0));
  }
  EXPECT_TRUE(backend_->Health().ok());
}

// A range that is not mapped, and one that is: neither is registered afterwards.
TEST_F(CudaBackendTest, D21_HostMemoryThatCannotBeRegistered) {
  SharedMemory host = *SharedMemory::Create("host", kMiB);
  auto good = backend_->RegisterHost(host.data(), kMiB);
  auto bad = backend_->RegisterHost(reinterpret_cast<uint8_t*>(uintptr_t{1} << 46), kMiB);
  ASSERT_TRUE(good.ok());
  ASSERT_TRUE(bad.ok()) << "no GPU is in use";
  for (const absl::Status& status : {backend_->CreateStream(uuid_).status(),
                                     backend_->Allocate(uuid_, "hot buffers", 64).status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("host memory"));
    EXPECT_EQ(ErrorMetadataOf(status)["requested_bytes"], absl::StrCat(kMiB));
  }
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  EXPECT_EQ(cudaHostUnregister(host.data()), cudaErrorHostMemoryNotRegistered);
  EXPECT_EQ(cudaGetLastError(), cudaErrorHostMemoryNotRegistered) << "of the line above";

  bad->reset();
  auto stream = Stream();
  ASSERT_NE(stream, nullptr);
  const absl::Status refused =
      backend_->RegisterHost(reinterpret_cast<uint8_t*>(uintptr_t{1} << 46), kMiB).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kResourceExhausted) << refused;
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  good->reset();
  EXPECT_EQ(cudaHostUnregister(host.data()), cudaErrorHostMemoryNotRegistered);
  cudaGetLastError();
}

TEST_F(CudaBackendTest, WhatItMadeOutlivesIt) {
  SharedMemory host = *SharedMemory::Create("host", kMiB);
  auto stream = Stream();
  auto memory = Allocate(64);
  auto registration = backend_->RegisterHost(host.data(), kMiB);
  ASSERT_TRUE(registration.ok());
  backend_.reset();
  EXPECT_EQ(Contents(*stream, *memory), std::vector<uint8_t>(64, 0));
  stream.reset();
  memory.reset();
  registration->reset();
}

TEST_F(CudaBackendTest, D12_CallsLeaveTheThreadsContextAlone) {
  Thread thread = *Thread::Start("fresh", [&] {
    EXPECT_EQ(CurrentContext(), nullptr);
    {
      auto stream = Stream();
      auto memory = Allocate(64);
      EXPECT_FALSE(backend_->Allocate("GPU-none", "x", 64).ok());
      EXPECT_EQ(Contents(*stream, *memory), std::vector<uint8_t>(64, 0));
    }
    EXPECT_EQ(CurrentContext(), nullptr);
  });
}

// Streams share a few queues of the GPU: one that waits must not stand in the way of many others.
TEST_F(CudaBackendTest, AWaitHoldsUpNoOtherStream) {
  constexpr int kStreams = 24;
  SharedMemory host = *SharedMemory::Create("word", 4096);
  auto registration = backend_->RegisterHost(host.data(), host.size_bytes());
  ASSERT_TRUE(registration.ok());
  auto* const word = reinterpret_cast<int32_t*>(host.data());
  auto memory = Allocate(kStreams * 4096);
  std::vector<std::unique_ptr<DeviceStream>> streams;
  for (int i = 0; i < kStreams; ++i) streams.push_back(Stream());
  ASSERT_TRUE(streams[0]->WaitWord(word, 1).ok());
  std::atomic<int> passed = 0;
  const std::vector<uint8_t> bytes(4096, 0x21);
  for (int i = 0; i < kStreams; ++i) {
    ASSERT_TRUE(streams[i]->Write(memory->data() + i * 4096, bytes.data(), 4096).ok());
    ASSERT_TRUE(streams[i]->Notify([&](const absl::Status&) { ++passed; }).ok());
  }
  // No more than 10 s for all but the one that waits; then the host lets that one go as well.
  const absl::Time deadline = absl::Now() + absl::Seconds(10);
  while (passed < kStreams - 1 && absl::Now() < deadline) std::this_thread::yield();
  EXPECT_EQ(passed, kStreams - 1);
  std::atomic_ref<int32_t>(*word).store(1, std::memory_order_release);
  EXPECT_TRUE(Drain(*streams[0]).ok());
  EXPECT_EQ(passed, kStreams);
}

// The first use of a GPU is what makes a context. In a process that has none yet.
TEST_F(CudaBackendTest, D22_AnIdleBackendHasNoContext) {
  EXPECT_EQ(RunInAChild("InAChild.DISABLED_AnIdleBackendHasNoContext"), "");
}

TEST(InAChild, DISABLED_AnIdleBackendHasNoContext) {
  SharedMemory host = *SharedMemory::Create("host", kMiB);
  auto backend = *MakeCudaBackend({});
  const std::string uuid = backend->Devices()[0].uuid;
  auto registration = *backend->RegisterHost(host.data(), kMiB);
  EXPECT_TRUE(backend->Health().ok());
  EXPECT_FALSE(backend->Allocate("GPU-none", "x", 64).ok());
  EXPECT_FALSE(backend->Allocate(uuid, "x", INT64_MAX).ok());
  EXPECT_FALSE(AnyContext());
  EXPECT_TRUE(backend->Allocate(uuid, "x", 64).ok());
  EXPECT_TRUE(AnyContext()) << "this test sees contexts";
}

// A kernel of a step that reads from nowhere: the context is lost.
TEST_F(CudaBackendTest, D23_ALostContextIsLostForGood) {
  EXPECT_EQ(RunInAChild("InAChild.DISABLED_ALostContext"), "");
}

void ExpectLost(const absl::Status& status) {
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
  EXPECT_EQ(ErrorReasonOf(status), "DEVICE_LOST");
  EXPECT_THAT(std::string(status.message()), HasSubstr("CUDA context lost"));
}

TEST(InAChild, DISABLED_ALostContext) {
  SharedMemory host = *SharedMemory::Create("host", kMiB);
  auto backend = *MakeCudaBackend({});
  const std::string uuid = backend->Devices()[0].uuid;
  auto registration = *backend->RegisterHost(host.data(), kMiB);
  auto stream = *backend->CreateStream(uuid), other = *backend->CreateStream(uuid);
  auto memory = *backend->Allocate(uuid, "x", kMiB);
  ASSERT_TRUE(Drain(*stream).ok());

  auto* const nowhere = reinterpret_cast<int32_t*>(uintptr_t{1} << 20);
  ASSERT_TRUE(
      stream
          ->ResetRegion({.shape = {.top_k = 4,
                                   .hot_size = 8,
                                   .region_count = 1,
                                   .region_stride = RegionStride(8, 1),
                                   .block_size = 4,
                                   .slot_count = 16,
                                   .max_blocks = 4},
                         .state = {.owner = nowhere, .lru = reinterpret_cast<int16_t*>(nowhere)}})
          .ok());
  int enqueued = 0;
  std::vector<absl::Status> reported;  // of the stream's thread until the stream has ended
  std::vector<uint8_t> seen(64, 0x11);
  for (int i = 0; i < 50; ++i) {
    (void)stream->Read(seen.data(), memory->data(), 64);
    const absl::Status status =
        stream->Notify([&](const absl::Status& s) { reported.push_back(s); });
    if (status.ok()) ++enqueued;
    if (!status.ok()) ExpectLost(status);
  }
  EXPECT_GE(enqueued, 1);
  ExpectLost(Drain(*stream));
  ExpectLost(backend->Health());
  ExpectLost(Drain(*other));
  ExpectLost(other->Write(memory->data(), seen.data(), 64));
  ExpectLost(other->SignalWord(reinterpret_cast<int32_t*>(memory->data()), 1));
  ExpectLost(other->WaitWord(reinterpret_cast<int32_t*>(memory->data()), 1));
  ExpectLost(memory->Export().status());
  ExpectLost(backend->Allocate(uuid, "x", 64).status());
  ExpectLost(backend->CreateStream(uuid).status());
  ExpectLost(backend->RegisterHost(host.data(), 64).status());
  stream.reset();
  ASSERT_EQ(static_cast<int>(reported.size()), enqueued) << "each runs once, also then";
  for (const absl::Status& status : reported) ExpectLost(status);
  EXPECT_EQ(seen, std::vector<uint8_t>(64, 0x11)) << "nothing is brought from a lost device";
  other.reset();
  memory.reset();
  registration.reset();
}

}  // namespace
}  // namespace kvtier
