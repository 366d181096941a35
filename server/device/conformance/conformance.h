// One suite that every device backend has to pass. A backend registers itself:
//
//   INSTANTIATE_TEST_SUITE_P(
//       Cpu, BackendConformance,
//       ::testing::Values(ConformanceParam{"OneThread", [] { return MakeCpuBackend({}); }}),
//       ConformanceName);
//
// and links //server/device/conformance. What each test demands is said beside it.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gtest/gtest.h"
#include "server/device/backend.h"
#include "server/device/conformance/drain.h"

namespace kvtier {

struct ConformanceParam {
  std::string name;  // letters and digits
  std::function<absl::StatusOr<std::unique_ptr<DeviceBackend>>()> make;
};

// A backend whose device is not on this machine (DEVICE_UNKNOWN) skips every test.
class BackendConformance : public ::testing::TestWithParam<ConformanceParam> {
 protected:
  void SetUp() override;

  std::unique_ptr<DeviceMemory> Allocate(int64_t bytes);
  std::unique_ptr<DeviceStream> Stream();

  // Fills memory, and reads it back, through `stream`.
  static void Fill(DeviceStream& stream, DeviceMemory& memory, const std::vector<uint8_t>& bytes);
  static std::vector<uint8_t> Contents(DeviceStream& stream, const DeviceMemory& memory);

  std::unique_ptr<DeviceBackend> backend_;
  DeviceInfo device_;  // the first one
};

inline std::string ConformanceName(const ::testing::TestParamInfo<ConformanceParam>& info) {
  return info.param.name;
}

}  // namespace kvtier
