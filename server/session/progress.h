// How far a worker's stream and its device stream in the daemon are: one number of each in host
// memory that both processes map, so that whoever survives can write the number of the one that
// died (docs/adr/0010). Numbers are compared cyclically: a is reached when word - a >= 0 in int32.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/mutex.h"
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
  // order, but near all that are still waited for: one number then reaches all of them. Errors:
  // FIELD_INVALID. Calls come one after the other.
  absl::Status Expect(int32_t number);
  // How many numbers were expected so far.
  int64_t expected_count() const;
  // The device stream is past the first `count` of them.
  void Passed(int64_t count);
  // Does the worker's word hold up any number that the device stream is not past? Never waits.
  bool behind() const;
  // Writes the furthest of them in the worker's place, if so. Never waits. A worker that lives may
  // write another one after it: repeat until the device stream has run dry.
  void Release();
  bool expects() const { return expected_count() > 0; }

 private:
  Progress(SharedMemory memory, std::unique_ptr<HostRegistration> registration)
      : memory_(std::move(memory)), registration_(std::move(registration)) {}

  const SharedMemory memory_;
  const std::unique_ptr<HostRegistration> registration_;
  mutable Mutex mutex_;
  // What the device stream may still wait for, in its order: any two are at most 2^30 apart. The
  // worker's word alone does not say what was passed: it may write what it likes, and write again.
  std::deque<int32_t> waits_ KVTIER_GUARDED_BY(mutex_);
  int64_t passed_count_ KVTIER_GUARDED_BY(mutex_) = 0;
};

}  // namespace kvtier
