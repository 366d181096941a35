// The CUDA backend and a second process: memory by both transports, events, ends by force.

#include <unistd.h>

#include <atomic>
#include <future>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/device/cuda/cuda_backend.h"
#include "server/device/cuda/testing/child_process.h"
#include "server/device/cuda/testing/gpu_test.h"

namespace kvtier {
namespace {

using ::kvtier::testing::ChildProcess;
using ::kvtier::testing::Drain;
using ::kvtier::testing::FreeBytes;
using ::kvtier::testing::FromHex;
using ::kvtier::testing::GpuTest;
using ::kvtier::testing::Hex;
using ::kvtier::testing::RunInAChild;

class CudaProcessTest : public GpuTest {
 protected:
  // What a worker sees of the first and the last byte.
  static std::string SeenByAWorker(const MemoryHandle& handle, int64_t bytes) {
    const bool is_fd = handle.transport == Transport::kCudaFd;
    ChildProcess worker({"--worker", "read", absl::StrCat(bytes),
                         is_fd ? "fd" : Hex(handle.ipc_handle.data(), handle.ipc_handle.size()),
                         absl::StrCat(handle.offset_bytes)},
                        handle.fd.get());
    const std::string said = worker.ReceiveAll();
    EXPECT_EQ(worker.Wait(), 0);
    return said;
  }
};

TEST_F(CudaProcessTest, ExportedMemoryIsTheSameMemoryInAnotherProcess) {
  for (const Transport transport : {Transport::kCudaFd, Transport::kCudaIpc}) {
    SCOPED_TRACE(static_cast<int>(transport));
    Make(transport);
    auto stream = Stream();
    // Small ones, which a driver may put into one block, and one of several pages.
    const std::vector<int64_t> sizes = {5000, 700, 5 << 20};
    std::vector<std::unique_ptr<DeviceMemory>> memories;
    for (size_t i = 0; i < sizes.size(); ++i) {
      memories.push_back(Allocate(sizes[i]));
      const std::vector<uint8_t> bytes(sizes[i], static_cast<uint8_t>(0x40 + i));
      ASSERT_TRUE(stream->Write(memories[i]->data(), bytes.data(), sizes[i]).ok());
    }
    ASSERT_TRUE(Drain(*stream).ok());
    for (size_t i = 0; i < sizes.size(); ++i) {
      const absl::StatusOr<MemoryHandle> handle = memories[i]->Export();
      ASSERT_TRUE(handle.ok()) << handle.status();
      EXPECT_EQ(handle->transport, transport);
      EXPECT_GE(handle->offset_bytes, 0);
      EXPECT_EQ(SeenByAWorker(*handle, sizes[i]), absl::StrCat(0x40 + i, " ", 0x40 + i, "\n"));
      const std::vector<uint8_t> after = Contents(*stream, *memories[i]);
      EXPECT_EQ(after.back(), 0x77) << "the worker's byte";
      EXPECT_EQ(after.front(), 0x40 + i);
    }
  }
}

// A descriptor is enough to keep the memory, and its end gives it back.
TEST_F(CudaProcessTest, D03_ADescriptorOutlivesTheAllocation) {
  auto stream = Stream();
  auto memory = Allocate(5000);
  const std::vector<uint8_t> bytes(5000, 0x17);
  ASSERT_TRUE(stream->Write(memory->data(), bytes.data(), 5000).ok());
  ASSERT_TRUE(Drain(*stream).ok());
  const int64_t used = FreeBytes();
  {
    const MemoryHandle handle = *memory->Export();
    memory.reset();
    EXPECT_EQ(FreeBytes(), used);
    EXPECT_EQ(SeenByAWorker(handle, 5000), "23 23\n");
  }
  EXPECT_GT(FreeBytes(), used);
}

// The worker's stream, the daemon's and the worker's second one, each behind the one before.
TEST_F(CudaProcessTest, EventsOrderTheWorkOfTwoProcesses) {
  auto stream = Stream();
  auto memory = Allocate(4096);
  const MemoryHandle handle = *memory->Export();
  const auto event = stream->ExportEvent();
  ASSERT_TRUE(event.ok()) << event.status();
  ASSERT_TRUE(event->has_value());
  ChildProcess worker({"--worker", "order", Hex((*event)->data(), (*event)->size())},
                      handle.fd.get());
  const std::string said = worker.Receive().value_or("nothing");
  EventHandle worker_event;
  ASSERT_TRUE(FromHex(said, worker_event.data(), worker_event.size())) << said;
  // Twice: the second takes the first one's place.
  for (int i = 0; i < 2; ++i) {
    const absl::Status imported = stream->ImportWorkerEvent(worker_event);
    ASSERT_TRUE(imported.ok()) << imported;
  }
  ASSERT_TRUE(stream->WaitForWorker().ok());
  std::vector<uint8_t> seen(4096, 0xee);
  const std::vector<uint8_t> written(4096, 0xb2);
  std::atomic<bool> done = false;
  ASSERT_TRUE(stream->Read(seen.data(), memory->data(), 4096).ok());
  ASSERT_TRUE(stream->Write(memory->data(), written.data(), 4096).ok());
  ASSERT_TRUE(stream->Notify([&](const absl::Status&) { done = true; }).ok());
  EXPECT_FALSE(done) << "the worker's kernel still runs";
  worker.Send("go on");
  EXPECT_EQ(worker.Receive(), "held") << "its second stream waits for the daemon's";
  EXPECT_EQ(worker.Receive(), absl::StrCat(0xb2)) << "what the daemon wrote";
  EXPECT_TRUE(Drain(*stream).ok());
  EXPECT_TRUE(done);
  EXPECT_EQ(seen, std::vector<uint8_t>(4096, 0xa1)) << "what the worker wrote";
  EXPECT_EQ(worker.Wait(), 0);
  stream.reset();
  EXPECT_TRUE(backend_->Health().ok());
}

TEST_F(CudaProcessTest, D11_HandlesOfNothingAreErrorsThatPass) {
  auto stream = Stream();
  EventHandle zeros = {}, ones, own = **stream->ExportEvent();
  ones.fill(0xff);
  for (const EventHandle& handle : {zeros, ones, own}) {
    const absl::Status status = stream->ImportWorkerEvent(handle);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(ErrorReasonOf(status), "FIELD_INVALID");
  }
  EXPECT_EQ(stream->WaitForWorker().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_TRUE(Drain(*stream).ok());
  EXPECT_TRUE(backend_->Health().ok());
}

// A worker that is killed in the middle of its work does not stop the daemon's stream.
TEST_F(CudaProcessTest, D03_AKilledWorkerHoldsNothingUp) {
  EXPECT_EQ(RunInAChild("InAChild.DISABLED_AKilledWorker"), "");
}

TEST(InAChild, DISABLED_AKilledWorker) {
  auto backend = *MakeCudaBackend({});
  const std::string uuid = backend->Devices()[0].uuid;
  auto stream = *backend->CreateStream(uuid);
  auto memory = *backend->Allocate(uuid, "x", 64);
  ChildProcess worker({"--worker", "hang"});
  const std::string said = worker.Receive().value_or("nothing");
  EventHandle event;
  ASSERT_TRUE(FromHex(said, event.data(), event.size())) << said;
  ASSERT_TRUE(stream->ImportWorkerEvent(event).ok());
  ASSERT_TRUE(stream->WaitForWorker().ok());
  std::promise<absl::Status> promise;
  ASSERT_TRUE(stream->Notify([&](absl::Status status) { promise.set_value(status); }).ok());
  std::future<absl::Status> notified = promise.get_future();
  EXPECT_EQ(notified.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  worker.Kill();
  if (notified.wait_for(std::chrono::seconds(40)) != std::future_status::ready) {
    printf("the stream still waits 40 s after the worker was killed\n");
    fflush(stdout);
    _exit(1);  // the end of the stream would wait as well
  }
  const absl::Status status = notified.get();
  EXPECT_TRUE(status.ok()) << status;
  // The dead worker's event stands for nothing more.
  const absl::Status waited = stream->WaitForWorker();
  EXPECT_TRUE(waited.ok()) << waited;
  const absl::Status drained = Drain(*stream);
  EXPECT_TRUE(drained.ok()) << drained;
  EXPECT_TRUE(backend->Health().ok());
}

}  // namespace
}  // namespace kvtier
