#include "server/device/conformance/conformance.h"

#include "server/core/error.h"

namespace kvtier {

void BackendConformance::SetUp() {
  auto backend = GetParam().make();
  if (ErrorReasonOf(backend.status()) == "DEVICE_UNKNOWN") GTEST_SKIP() << backend.status();
  ASSERT_TRUE(backend.ok()) << backend.status();
  backend_ = *std::move(backend);
  ASSERT_FALSE(backend_->Devices().empty());
  device_ = backend_->Devices()[0];
}

std::unique_ptr<DeviceMemory> BackendConformance::Allocate(int64_t bytes) {
  auto memory = backend_->Allocate(device_.uuid, "conformance", bytes);
  EXPECT_TRUE(memory.ok()) << memory.status();
  return memory.ok() ? *std::move(memory) : nullptr;
}

std::unique_ptr<DeviceStream> BackendConformance::Stream() {
  auto stream = backend_->CreateStream(device_.uuid);
  EXPECT_TRUE(stream.ok()) << stream.status();
  return stream.ok() ? *std::move(stream) : nullptr;
}

void BackendConformance::Fill(DeviceStream& stream, DeviceMemory& memory,
                              const std::vector<uint8_t>& bytes) {
  ASSERT_EQ(static_cast<int64_t>(bytes.size()), memory.size_bytes());
  ASSERT_TRUE(stream.Write(memory.data(), bytes.data(), memory.size_bytes()).ok());
}

std::vector<uint8_t> BackendConformance::Contents(DeviceStream& stream,
                                                  const DeviceMemory& memory) {
  std::vector<uint8_t> bytes(static_cast<size_t>(memory.size_bytes()), 0xee);
  EXPECT_TRUE(stream.Read(bytes.data(), memory.data(), memory.size_bytes()).ok());
  EXPECT_TRUE(Drain(stream).ok());
  return bytes;
}

}  // namespace kvtier
