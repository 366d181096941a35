// A device stream of the CPU backend: a queue and, unless a stepper moves it, a thread.
#pragma once

#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/core/thread.h"
#include "server/device/backend.h"
#include "server/device/cpu/operation_queue.h"

namespace kvtier {

class CpuStream final : public DeviceStream {
 public:
  // With `own_thread` false somebody else calls queue->RunOne(). Errors: RESOURCE_EXHAUSTED
  // where the system has no thread left.
  static absl::StatusOr<std::unique_ptr<CpuStream>> Create(
      const std::shared_ptr<OperationQueue>& queue, bool own_thread);
  // Does what is enqueued, on the stream's thread or else on this one. Not from a Notify.
  ~CpuStream() override;

  absl::Status SwapIn(const SwapInParams& params) override;
  absl::Status ReplayPlan(const ReplayPlanParams& params) override;
  absl::Status Backup(const BackupParams& params) override;
  absl::Status Invalidate(const InvalidateParams& params) override;
  absl::Status ResetRegion(const ResetRegionParams& params) override;
  absl::Status Write(uint8_t* destination, const void* source, int64_t bytes) override;
  absl::Status Read(void* destination, const uint8_t* source, int64_t bytes) override;
  absl::Status Notify(std::function<void(absl::Status)> done) override;
  absl::Status SignalWord(int32_t* word, int32_t value) override;
  absl::Status WaitWord(const int32_t* word, int32_t value) override;
  bool BeginHere() override { return queue_->BeginHere(); }
  void EndHere() override { queue_->EndHere(); }

 private:
  explicit CpuStream(std::shared_ptr<OperationQueue> queue) : queue_(std::move(queue)) {}

  const std::shared_ptr<OperationQueue> queue_;  // shared with the thread and the stepper
  Thread thread_;
};

}  // namespace kvtier
