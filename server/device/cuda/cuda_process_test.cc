// The CUDA backend and a second process: memory by both transports, order, ends by force.

#include <unistd.h>

#include <future>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/device/cuda/cuda_backend.h"
#include "server/device/cuda/testing/child_process.h"
#include "server/device/cuda/testing/gpu_test.h"

namespace kvtier {
namespace {

using ::kvtier::testing::ChildProcess;
using ::kvtier::testing::FreeBytes;
using ::kvtier::testing::GpuTest;
using ::kvtier::testing::Hex;
using ::kvtier::testing::RunInAChild;

// A worker process that is given `handle` behind its role and that role's own arguments.
std::unique_ptr<ChildProcess> Worker(const MemoryHandle& handle,
                                     std::vector<std::string> arguments) {
  arguments.insert(arguments.begin(), "--worker");
  const bool is_ipc = handle.transport == MemoryHandle::Transport::kCudaIpc;
  arguments.push_back(is_ipc ? Hex(handle.ipc_handle.data(), handle.ipc_handle.size()) : "fd");
  arguments.push_back(absl::StrCat(handle.offset_bytes));
  return std::make_unique<ChildProcess>(arguments, handle.fd.get());
}

class CudaProcessTest : public GpuTest {
 protected:
  // What a worker sees of the first and the last byte.
  static std::string SeenByAWorker(const MemoryHandle& handle, int64_t bytes) {
    std::unique_ptr<ChildProcess> worker = Worker(handle, {"read", absl::StrCat(bytes)});
    const std::string said = worker->ReceiveAll();
    EXPECT_EQ(worker->Wait(), 0);
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

// In the memory that both processes map: the data, and the two numbers.
constexpr int64_t kDataBytes = 4096;
int32_t* WorkersWord(const DeviceMemory& memory) {
  return reinterpret_cast<int32_t*>(memory.data() + kDataBytes);
}
int32_t* DaemonsWord(const DeviceMemory& memory) { return WorkersWord(memory) + 1; }

// The worker writes and the daemon reads, then the daemon writes and the worker reads, many times;
// neither host waits for anything in between.
TEST_F(CudaProcessTest, NumbersOrderTheWorkOfTwoProcesses) {
  constexpr int kRounds = 200;
  for (const Transport transport : {Transport::kCudaFd, Transport::kCudaIpc}) {
    SCOPED_TRACE(static_cast<int>(transport));
    Make(transport);
    auto stream = Stream();
    auto memory = Allocate(2 * kDataBytes);
    const MemoryHandle handle = *memory->Export();
    std::unique_ptr<ChildProcess> worker =
        Worker(handle, {"order", absl::StrCat(2 * kDataBytes), absl::StrCat(kRounds)});
    EXPECT_EQ(worker->Receive(), "ready");
    std::vector<std::vector<uint8_t>> seen(kRounds, std::vector<uint8_t>(kDataBytes));
    worker->Send("go");
    for (int round = 1; round <= kRounds; ++round) {
      const std::vector<uint8_t> written(kDataBytes, static_cast<uint8_t>(2 * round + 1));
      ASSERT_TRUE(stream->WaitWord(WorkersWord(*memory), round).ok());
      ASSERT_TRUE(stream->Read(seen[round - 1].data(), memory->data(), kDataBytes).ok());
      ASSERT_TRUE(stream->Write(memory->data(), written.data(), kDataBytes).ok());
      ASSERT_TRUE(stream->SignalWord(DaemonsWord(*memory), round).ok());
    }
    const absl::Status drained = Drain(*stream);
    ASSERT_TRUE(drained.ok()) << drained;
    for (int round = 1; round <= kRounds; ++round) {
      ASSERT_EQ(seen[round - 1], std::vector<uint8_t>(kDataBytes, static_cast<uint8_t>(2 * round)))
          << "what the worker wrote in round " << round;
    }
    EXPECT_EQ(worker->Receive(), "wrong rounds: 0") << "in what the daemon wrote";
    EXPECT_EQ(worker->Wait(), 0);
  }
}

// The test above can see what it looks for.
TEST_F(CudaProcessTest, WithoutNumbersTheOrderIsAnother) {
  auto stream = Stream();
  auto memory = Allocate(2 * kDataBytes);
  const MemoryHandle handle = *memory->Export();
  std::unique_ptr<ChildProcess> worker =
      Worker(handle, {"order", absl::StrCat(2 * kDataBytes), "1"});
  EXPECT_EQ(worker->Receive(), "ready");
  worker->Send("go");
  std::vector<uint8_t> seen(kDataBytes, 0xee);
  ASSERT_TRUE(stream->Read(seen.data(), memory->data(), kDataBytes).ok());
  ASSERT_TRUE(Drain(*stream).ok());
  EXPECT_EQ(seen, std::vector<uint8_t>(kDataBytes, 0)) << "the worker takes 500 ms";
  ASSERT_TRUE(stream->SignalWord(DaemonsWord(*memory), 1).ok());
  ASSERT_TRUE(Drain(*stream).ok());
  EXPECT_EQ(worker->Receive(), "wrong rounds: 1");
}

// A worker that is killed in the middle of its work leaves a stream that waits for its number.
// Another stream writes that number, and all goes on.
TEST_F(CudaProcessTest, D03_AKilledWorkersNumberIsWrittenByAnotherStream) {
  EXPECT_EQ(RunInAChild("InAChild.DISABLED_AKilledWorker"), "");
}

TEST(InAChild, DISABLED_AKilledWorker) {
  auto backend = *MakeCudaBackend({});
  const std::string uuid = backend->Devices()[0].uuid;
  auto stream = *backend->CreateStream(uuid), other = *backend->CreateStream(uuid);
  auto memory = *backend->Allocate(uuid, "x", 2 * kDataBytes);
  const MemoryHandle handle = *memory->Export();
  std::unique_ptr<ChildProcess> worker = Worker(handle, {"hang", absl::StrCat(2 * kDataBytes)});
  ASSERT_EQ(worker->Receive(), "ready");
  ASSERT_TRUE(stream->WaitWord(WorkersWord(*memory), 1).ok());
  std::promise<absl::Status> promise;
  ASSERT_TRUE(stream->Notify([&](absl::Status status) { promise.set_value(status); }).ok());
  std::future<absl::Status> notified = promise.get_future();
  EXPECT_EQ(notified.wait_for(std::chrono::milliseconds(50)), std::future_status::timeout);
  worker->Kill();
  EXPECT_EQ(notified.wait_for(std::chrono::milliseconds(500)), std::future_status::timeout)
      << "its number has not come by itself";
  const int32_t one = 1;
  ASSERT_TRUE(other->Write(reinterpret_cast<uint8_t*>(WorkersWord(*memory)), &one, 4).ok());
  if (notified.wait_for(std::chrono::seconds(20)) != std::future_status::ready) {
    printf("the stream still waits 20 s after the number was written\n");
    fflush(stdout);
    _exit(1);  // the end of the stream would wait as well
  }
  const absl::Status status = notified.get();
  EXPECT_TRUE(status.ok()) << status;
  for (DeviceStream* each : {stream.get(), other.get()}) {
    EXPECT_TRUE(each->SignalWord(WorkersWord(*memory), 2).ok());
    EXPECT_TRUE(Drain(*each).ok());
  }
  EXPECT_TRUE(backend->Health().ok());
}

}  // namespace
}  // namespace kvtier
