// A device stream that follows a FaultPlan.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "server/core/mutex.h"
#include "server/device/backend.h"
#include "server/device/fault/fault_plan.h"

namespace kvtier {

class FaultStream final : public DeviceStream {
 public:
  FaultStream(std::unique_ptr<DeviceStream> inner, std::shared_ptr<FaultPlan> plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}
  ~FaultStream() override;

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
  // False while the plan has something in store, or an error has not been told: both need a Notify.
  bool BeginHere() override;
  void EndHere() override { inner_->EndHere(); }

 private:
  // Errors met by the inner stream that a delay's own Notify took notice of.
  struct Met {
    Mutex mutex;  // rank: leaf
    absl::Status first KVTIER_GUARDED_BY(mutex);
  };

  absl::Status Enqueue(DeviceOperation operation, const std::function<absl::Status()>& enqueue);
  // Makes the inner stream stand still where it is.
  absl::Status Hold(std::function<void()> hold);
  void NoteWorkError(const absl::Status& status);

  const std::unique_ptr<DeviceStream> inner_;
  const std::shared_ptr<FaultPlan> plan_;
  const std::shared_ptr<Met> met_ = std::make_shared<Met>();
  Mutex mutex_;  // rank: leaf
  // The first injected error of work since the last Notify was enqueued.
  absl::Status work_error_ KVTIER_GUARDED_BY(mutex_);
};

}  // namespace kvtier
