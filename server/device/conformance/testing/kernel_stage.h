// The kernels of a backend for arguments that lie in ordinary memory.
//
// Each call carries every array it names to the backend's memory, runs the operation on a
// device stream, waits, and carries everything back, so that tests written for functions on
// host memory judge a whole backend: its memory, its order and its kernels. Bytes between the
// arrays are guards: a kernel that wrote outside its arrays is found at once.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/params.h"
#include "kernels/testing/implementation.h"
#include "server/core/shared_memory.h"
#include "server/device/backend.h"

namespace kvtier::testing {

class KernelStage {
 public:
  // `drain` waits for a stream. All must outlive the stage and the Implementation.
  KernelStage(DeviceBackend* backend, const std::string& device_uuid,
              std::function<absl::Status(DeviceStream&)> drain);

  // Errors are gtest failures.
  Implementation AsImplementation(const std::string& name);

 private:
  // An array of the caller's and its place in one of the two memories of a call.
  struct Array {
    uint8_t* original = nullptr;
    int64_t size_bytes = 0;
    int64_t offset_bytes = 0;
    bool writable = true;
  };
  struct Memory {
    std::vector<Array> arrays;
    int64_t end_bytes = 0;
  };

  // The device's address of an array that is carried over.
  template <typename T>
  T* Device(T* array, int64_t count);
  template <typename T>
  T* Host(T* array, int64_t count);
  uint8_t* Place(Memory* memory, const void* array, int64_t size_bytes, bool writable,
                 uint8_t* base);
  GroupState Carry(const GroupShape& shape, const GroupState& state);
  RowTracking Carry(const GroupShape& shape, const RowTracking& tracking);
  Plan Carry(const GroupShape& shape, int32_t num_rows, const Plan& plan);
  std::vector<LayerView> Carry(const GroupShape& shape, const LayerView* layers, int32_t count);

  // Carries over, runs, carries back.
  void Run(const std::function<absl::Status()>& enqueue);
  void CarryBack(Memory* memory, const std::vector<uint8_t>& image);

  void SwapIn(const SwapInParams& params);
  void ReplayPlan(const ReplayPlanParams& params);
  void Backup(const BackupParams& params);
  void Invalidate(const InvalidateParams& params);
  void ResetRegion(const ResetRegionParams& params);

  std::function<absl::Status(DeviceStream&)> drain_;
  std::unique_ptr<DeviceStream> stream_;
  std::unique_ptr<DeviceMemory> device_memory_;
  SharedMemory host_memory_;
  std::unique_ptr<HostRegistration> registration_;
  Memory device_, host_;
};

}  // namespace kvtier::testing
