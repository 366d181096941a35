// How far a worker's stream and its device stream in the daemon are: one number of each in host
// memory that both processes map, so that whoever survives can write the number of the one that
// died (docs/adr/0010). Numbers are compared cyclically: a is reached when word - a >= 0 in int32.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/shared_memory.h"
#include "server/device/backend.h"

namespace kvtier {

class Progress {
 public:
  static constexpr int64_t kBytes = 4096;

  // `backend`: whose kernels reach it; null on a CPU, where nobody does. Errors:
  // RESOURCE_EXHAUSTED.
  static absl::StatusOr<std::shared_ptr<Progress>> Create(DeviceBackend* backend);

  const UniqueFd& fd() const { return memory_.fd(); }
  int32_t* worker_word() const { return reinterpret_cast<int32_t*>(memory_.data()); }
  int32_t* daemon_word() const { return worker_word() + 1; }

  // Work that waits for the worker's `number` is about to be enqueued. Numbers may come in any
  // order, but near one another. Errors: FIELD_INVALID. Calls come one after the other.
  absl::Status Expect(int32_t number);
  // Has the worker not written the furthest number that was expected? Never waits.
  bool behind() const;
  // Writes that number in the worker's place, if it has not been reached. Never waits. A worker
  // that lives may write an earlier one after it: repeat until the device stream has run dry.
  void Release();
  bool expects() const { return expected_.load() != kNothing; }

 private:
  static constexpr int64_t kNothing = INT64_MIN;

  Progress(SharedMemory memory, std::unique_ptr<HostRegistration> registration)
      : memory_(std::move(memory)), registration_(std::move(registration)) {}

  const SharedMemory memory_;
  const std::unique_ptr<HostRegistration> registration_;
  std::atomic<int64_t> expected_{kNothing};  // an int32, the furthest one
};

}  // namespace kvtier
