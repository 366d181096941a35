// The device that a cache's hot memory is on, in this library's terms: how this process maps that
// memory and runs kernels on it is client/data_plane's. Internal to client/.
//
// On a CPU hot memory is host memory, and a kernel is done when its call returns. On a GPU hot
// memory is for the device alone, and a kernel is enqueued on the worker's stream. Nothing here
// locks: calls of one Device run one after the other, and on a GPU on one stream at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "client/cache_shape.h"
#include "client/cache_view.h"
#include "client/data_plane/device.h"
#include "client/mapping.h"
#include "kernels/params.h"
#include "proto/kvtier/v1/kvtier.pb.h"
#include "proto/kvtier/v1/types.pb.h"

namespace kvtier::client {

class Device {
 public:
  explicit Device(std::unique_ptr<data_plane::Device> device) : device_(std::move(device)) {}

  // May the host read and write hot memory?
  bool host_readable() const { return device_->host_readable(); }

  // UNIMPLEMENTED / NOT_IMPLEMENTED for a segment that Map cannot map. Looks at nothing else.
  absl::Status CheckTransport(const v1::Segment& segment) const;
  // Maps a segment, host memory so that kernels can reach it too. Nothing that it says is trusted.
  // Errors: INTERNAL / INTERNAL for memory that is not what the segment says; RESOURCE_EXHAUSTED /
  // LIMIT_REACHED where the system or the driver refuses; INTERNAL / DEVICE_ERROR; of `redeem`.
  absl::StatusOr<Mapping> Map(const v1::Segment& segment, const RedeemToken& redeem);
  // Scratch memory for kernels on a cache of `shape`. Once, before the first of them.
  absl::Status Reserve(const CacheShape& shape);

  // ---- Kernels. Errors: INVALID_ARGUMENT / FIELD_INVALID for a null stream on a GPU and for one
  // on a CPU, INTERNAL / DEVICE_ERROR.
  absl::Status SwapIn(const SwapInParams& params, DeviceStreamRef stream);
  absl::Status ReplayPlan(const ReplayPlanParams& params, DeviceStreamRef stream);
  absl::Status Backup(const BackupParams& params, DeviceStreamRef stream);

  // ---- Small copies between hot memory and the host; done when they return.
  absl::Status Read(void* destination, const void* source, int64_t bytes) const;
  absl::Status Write(void* destination, const void* source, int64_t bytes) const;

  // Returns when all that was enqueued on the device by this process is done. Errors: DEVICE_ERROR.
  absl::Status Finish();

  // ---- Order between the worker's stream and the daemon's, by numbers in host memory. Nobody
  // asks for it on a CPU, where the order of calls is order enough.

  // Writes `number` to `*word` when all that `stream` has now is done.
  absl::Status Signal(int32_t* word, int32_t number, DeviceStreamRef stream);
  // What is enqueued on `stream` from now on comes after *word - number >= 0, in int32.
  absl::Status Wait(const int32_t* word, int32_t number, DeviceStreamRef stream);

 private:
  std::unique_ptr<data_plane::Device> device_;
};

// `device` as the daemon names it. `kernel_threads`: of a CPU device. Errors: FAILED_PRECONDITION /
// DEVICE_UNKNOWN for a GPU that this process cannot see; UNIMPLEMENTED / NOT_IMPLEMENTED for one
// where the library was built without CUDA.
absl::StatusOr<std::unique_ptr<Device>> OpenDevice(const v1::Device& device,
                                                   int32_t kernel_threads);

}  // namespace kvtier::client
