// The device that a cache's hot memory is on: how this process maps that memory and runs kernels
// on it. Internal to client/.
//
// On a CPU hot memory is host memory, and a kernel is done when its call returns. On a GPU hot
// memory is for the device alone, and a kernel is enqueued on the worker's stream. Nothing here
// locks: calls of one Device run one after the other, and on a GPU on one stream at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cache_shape.h"
#include "client/cache_view.h"
#include "client/mapping.h"
#include "kernels/params.h"
#include "proto/kvtier/v1/kvtier.pb.h"
#include "proto/kvtier/v1/types.pb.h"

namespace kvtier::client {

class Device {
 public:
  virtual ~Device() = default;

  // May the host read and write hot memory?
  virtual bool host_readable() const = 0;

  // UNIMPLEMENTED / NOT_IMPLEMENTED for a segment that Map cannot map. Looks at nothing else.
  virtual absl::Status CheckTransport(const v1::Segment& segment) const = 0;
  // Maps a segment, host memory so that kernels can reach it too. Errors: as MapFile;
  // RESOURCE_EXHAUSTED / LIMIT_REACHED where the driver refuses; INTERNAL / DEVICE_ERROR.
  virtual absl::StatusOr<std::unique_ptr<Mapping>> Map(const v1::Segment& segment,
                                                       const RedeemToken& redeem) = 0;
  // Scratch memory for kernels on a cache of `shape`. Once, before the first of them.
  virtual absl::Status Reserve(const CacheShape& shape) = 0;

  // ---- Kernels. Errors: INVALID_ARGUMENT / FIELD_INVALID for a null stream on a GPU, INTERNAL /
  // DEVICE_ERROR.
  virtual absl::Status SwapIn(const SwapInParams& params, DeviceStreamRef stream) = 0;
  virtual absl::Status ReplayPlan(const ReplayPlanParams& params, DeviceStreamRef stream) = 0;
  virtual absl::Status Backup(const BackupParams& params, DeviceStreamRef stream) = 0;

  // ---- Small copies between hot memory and the host; done when they return.
  virtual absl::Status Read(void* destination, const void* source, int64_t bytes) const = 0;
  virtual absl::Status Write(void* destination, const void* source, int64_t bytes) const = 0;

  // Returns when all that was enqueued on the device by this process is done. Errors: DEVICE_ERROR.
  virtual absl::Status Finish() = 0;

  // ---- Order between the worker's stream and the daemon's, by numbers in host memory. Nobody
  // asks for it on a CPU, where the order of calls is order enough.

  // Writes `number` to `*word` when all that `stream` has now is done.
  virtual absl::Status Signal(int32_t* word, int32_t number, DeviceStreamRef stream) = 0;
  // What is enqueued on `stream` from now on comes after *word - number >= 0, in int32.
  virtual absl::Status Wait(const int32_t* word, int32_t number, DeviceStreamRef stream) = 0;
};

// `device` as the daemon names it. `kernel_threads`: of a CPU device. Errors: FAILED_PRECONDITION /
// DEVICE_UNKNOWN for a GPU that this process cannot see; UNIMPLEMENTED / NOT_IMPLEMENTED for one
// where the library was built without CUDA.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const v1::Device& device,
                                                   int32_t kernel_threads);

}  // namespace kvtier::client
