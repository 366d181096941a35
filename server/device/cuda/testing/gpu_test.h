// What the tests on a real GPU share. Without one they are skipped.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "server/device/backend.h"
#include "server/device/conformance/drain.h"

namespace kvtier::testing {

class GpuTest : public ::testing::Test {
 protected:
  using Transport = MemoryHandle::Transport;

  void SetUp() override { Make(Transport::kCudaFd); }
  // Puts another backend in the place of the present one.
  void Make(Transport transport);

  std::unique_ptr<DeviceMemory> Allocate(int64_t bytes);
  std::unique_ptr<DeviceStream> Stream();
  static std::vector<uint8_t> Contents(DeviceStream& stream, const DeviceMemory& memory);

  std::unique_ptr<DeviceBackend> backend_;
  std::string uuid_;  // of the GPU with ordinal 0
};

// Of the GPU with ordinal 0; makes a context on it.
int64_t FreeBytes();
// Is there a context of this process on any GPU? Makes none.
bool AnyContext();
// The context that is current in this thread, or null.
void* CurrentContext();

// Runs a test that gtest calls disabled in a process of its own; what it says if it fails, or "".
std::string RunInAChild(const std::string& test);

}  // namespace kvtier::testing
