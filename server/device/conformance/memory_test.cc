// What a backend's memory has to be.

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <set>

#include "server/core/error.h"
#include "server/device/conformance/conformance.h"

namespace kvtier {
namespace {

TEST_P(BackendConformance, DevicesHaveNamesOfTheirOwn) {
  std::set<std::string> uuids;
  for (const DeviceInfo& device : backend_->Devices()) {
    EXPECT_FALSE(device.uuid.empty());
    EXPECT_FALSE(device.name.empty());
    EXPECT_GT(device.memory_bytes, 0);
    EXPECT_TRUE(uuids.insert(device.uuid).second) << device.uuid;
  }
  EXPECT_TRUE(backend_->Health().ok());
}

TEST_P(BackendConformance, AllocationsAreZeroFilled) {
  auto stream = Stream();
  for (const int64_t bytes : {int64_t{1}, int64_t{4097}, int64_t{3} << 20}) {
    for (int i = 0; i < 2; ++i) {  // the second may get what the first gave back
      auto memory = Allocate(bytes);
      EXPECT_EQ(memory->size_bytes(), bytes);
      EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data()) % 256, 0u);
      EXPECT_EQ(Contents(*stream, *memory), std::vector<uint8_t>(bytes, 0));
      Fill(*stream, *memory, std::vector<uint8_t>(bytes, 0xcd));
      EXPECT_TRUE(Drain(*stream).ok());
    }
  }
}

TEST_P(BackendConformance, AllocationsDoNotOverlap) {
  auto stream = Stream();
  std::vector<std::unique_ptr<DeviceMemory>> memories;
  for (uint8_t i = 0; i < 8; ++i) {
    memories.push_back(Allocate(5000));
    Fill(*stream, *memories.back(), std::vector<uint8_t>(5000, i));
  }
  for (uint8_t i = 0; i < 8; ++i) {
    EXPECT_EQ(Contents(*stream, *memories[i]), std::vector<uint8_t>(5000, i));
  }
}

// Reads `memory` in a process of its own, and writes its last byte. True if that saw `value`.
bool ChildSees(const MemoryHandle& handle, int64_t bytes, uint8_t value) {
  const pid_t child = fork();
  if (child == 0) {
    void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, handle.fd.get(),
                        handle.offset_bytes);
    if (mapped == MAP_FAILED) _exit(2);
    auto* data = static_cast<uint8_t*>(mapped);
    const bool seen = data[0] == value && data[bytes - 1] == value;
    data[bytes - 1] = 0x77;
    _exit(seen ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_P(BackendConformance, ExportedMemoryIsTheSameMemoryInAnotherProcess) {
  auto stream = Stream();
  auto memory = Allocate(8192);
  const absl::StatusOr<MemoryHandle> handle = memory->Export();
  ASSERT_TRUE(handle.ok()) << handle.status();
  const absl::StatusOr<MemoryHandle> second = memory->Export();
  ASSERT_TRUE(second.ok()) << "one for each process";
  if (device_.kind != BackendKind::kCpu) return;  // a GPU's memory is not for mmap
  EXPECT_NE(handle->fd.get(), second->fd.get());
  Fill(*stream, *memory, std::vector<uint8_t>(8192, 0x42));
  ASSERT_TRUE(Drain(*stream).ok());
  EXPECT_TRUE(ChildSees(*handle, 8192, 0x42));
  EXPECT_EQ(Contents(*stream, *memory).back(), 0x77);
}

// The descriptor is enough: whoever has it keeps the memory, however its maker ends.
TEST_P(BackendConformance, D03_AnExportOutlivesTheAllocation) {
  if (device_.kind != BackendKind::kCpu) return;  // a GPU's memory is not for mmap
  auto stream = Stream();
  auto memory = Allocate(4096);
  Fill(*stream, *memory, std::vector<uint8_t>(4096, 0x17));
  ASSERT_TRUE(Drain(*stream).ok());
  const MemoryHandle handle = *memory->Export();
  memory.reset();
  EXPECT_TRUE(ChildSees(handle, 4096, 0x17));
}

TEST_P(BackendConformance, D12_UnknownDevicesAreErrorsThatNameTheKnownOnes) {
  for (const char* uuid : {"", "CPU-7", "0", "GPU", "GPU-00000000-0000-0000-0000-000000000000"}) {
    for (const absl::Status& status :
         {backend_->Allocate(uuid, "x", 64).status(), backend_->CreateStream(uuid).status()}) {
      EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition) << uuid;
      EXPECT_EQ(ErrorReasonOf(status), "DEVICE_UNKNOWN");
      const ErrorMetadata metadata = ErrorMetadataOf(status);
      ASSERT_EQ(metadata.count("device_uuid") + metadata.count("known"), 2u);
      EXPECT_EQ(metadata.at("device_uuid"), uuid);
      for (const DeviceInfo& device : backend_->Devices()) {
        EXPECT_NE(metadata.at("known").find(device.uuid), std::string::npos);
      }
    }
  }
  EXPECT_NE(Allocate(64), nullptr) << "the error does not stick";
}

TEST_P(BackendConformance, ImpossibleSizesAreErrorsThatDoNotStick) {
  for (const int64_t bytes : {int64_t{0}, int64_t{-1}, INT64_MIN}) {
    EXPECT_EQ(backend_->Allocate(device_.uuid, "x", bytes).status().code(),
              absl::StatusCode::kInvalidArgument);
  }
  for (const int64_t bytes : {int64_t{1} << 50, INT64_MAX}) {
    const absl::Status status = backend_->Allocate(device_.uuid, "hot buffers", bytes).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
    EXPECT_EQ(ErrorReasonOf(status), "DEVICE_MEMORY_EXHAUSTED");
    EXPECT_EQ(ErrorMetadataOf(status)["device_uuid"], device_.uuid);
    EXPECT_EQ(ErrorMetadataOf(status)["requested_bytes"], std::to_string(bytes));
    EXPECT_NE(std::string(status.message()).find("hot buffers"), std::string::npos);
  }
  auto stream = Stream();
  auto memory = Allocate(64);
  EXPECT_EQ(Contents(*stream, *memory), std::vector<uint8_t>(64, 0));
}

// Before a device is in use, which may mean that nothing is done yet, and after.
TEST_P(BackendConformance, HostMemoryIsRegisteredInPieces) {
  std::unique_ptr<DeviceStream> stream;
  for (const bool in_use : {false, true}) {
    SCOPED_TRACE(in_use);
    if (in_use) stream = Stream();
    SharedMemory host = *SharedMemory::Create("host", 4 << 20);
    std::vector<std::unique_ptr<HostRegistration>> pieces;
    for (int64_t offset = 0; offset < host.size_bytes(); offset += 1 << 20) {
      auto piece = backend_->RegisterHost(host.data() + offset, 1 << 20);
      ASSERT_TRUE(piece.ok()) << piece.status();
      pieces.push_back(*std::move(piece));
    }
    EXPECT_FALSE(backend_->RegisterHost(host.data() + (1 << 20), 1 << 20).ok()) << "twice";
    EXPECT_FALSE(backend_->RegisterHost(host.data(), 0).ok()) << "nothing";
    EXPECT_FALSE(backend_->RegisterHost(nullptr, 4096).ok()) << "nowhere";
    pieces[1].reset();
    auto again = backend_->RegisterHost(host.data() + (1 << 20), 1 << 20);
    EXPECT_TRUE(again.ok()) << again.status() << "; errors do not stick";
  }
}

TEST_P(BackendConformance, NoHostMemoryIsRegisteredAfterAStop) {
  SharedMemory host = *SharedMemory::Create("host", 2 << 20);
  auto before = backend_->RegisterHost(host.data(), 1 << 20);
  ASSERT_TRUE(before.ok()) << before.status();
  backend_->StopRegistering();
  const absl::Status after = backend_->RegisterHost(host.data() + (1 << 20), 1 << 20).status();
  EXPECT_EQ(after.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReasonOf(after), "DRAINING");
  before->reset();
}

}  // namespace
}  // namespace kvtier
