#include "server/device/fault/fault_stream.h"

namespace kvtier {

FaultStream::~FaultStream() {
  if (const auto hold = plan_->OnCall(DeviceOperation::kDestroyStream).hold) hold();
}

absl::Status FaultStream::Enqueue(DeviceOperation operation,
                                  const std::function<absl::Status()>& enqueue) {
  FaultPlan::Verdict verdict = plan_->OnCall(operation);
  if (!verdict.call.ok()) return verdict.call;
  if (verdict.hold) {
    if (absl::Status status = Hold(std::move(verdict.hold)); !status.ok()) return status;
  }
  if (verdict.work.ok()) return enqueue();
  NoteWorkError(verdict.work);
  return absl::OkStatus();
}

absl::Status FaultStream::Hold(std::function<void()> hold) {
  // The one callback that blocks: to stop the stream is what it is for.
  return inner_->Notify([hold = std::move(hold), met = met_](const absl::Status& status) {
    {
      MutexLock lock(&met->mutex);
      met->first.Update(status);
    }
    hold();
  });
}

void FaultStream::NoteWorkError(const absl::Status& status) {
  MutexLock lock(&mutex_);
  work_error_.Update(status);
}

absl::Status FaultStream::SwapIn(const SwapInParams& params) {
  return Enqueue(DeviceOperation::kSwapIn, [&] { return inner_->SwapIn(params); });
}

absl::Status FaultStream::ReplayPlan(const ReplayPlanParams& params) {
  return Enqueue(DeviceOperation::kReplayPlan, [&] { return inner_->ReplayPlan(params); });
}

absl::Status FaultStream::Backup(const BackupParams& params) {
  return Enqueue(DeviceOperation::kBackup, [&] { return inner_->Backup(params); });
}

absl::Status FaultStream::Invalidate(const InvalidateParams& params) {
  return Enqueue(DeviceOperation::kInvalidate, [&] { return inner_->Invalidate(params); });
}

absl::Status FaultStream::ResetRegion(const ResetRegionParams& params) {
  return Enqueue(DeviceOperation::kResetRegion, [&] { return inner_->ResetRegion(params); });
}

absl::Status FaultStream::Write(uint8_t* destination, const void* source, int64_t bytes) {
  return Enqueue(DeviceOperation::kWrite,
                 [&] { return inner_->Write(destination, source, bytes); });
}

absl::Status FaultStream::Read(void* destination, const uint8_t* source, int64_t bytes) {
  return Enqueue(DeviceOperation::kRead, [&] { return inner_->Read(destination, source, bytes); });
}

absl::Status FaultStream::Notify(std::function<void(absl::Status)> done) {
  FaultPlan::Verdict verdict = plan_->OnCall(DeviceOperation::kNotify);
  if (!verdict.call.ok()) return verdict.call;
  if (verdict.hold) {
    if (absl::Status status = Hold(std::move(verdict.hold)); !status.ok()) return status;
  }
  absl::Status injected;
  {
    MutexLock lock(&mutex_);
    injected = std::exchange(work_error_, absl::OkStatus());
  }
  absl::Status reported = injected;
  reported.Update(verdict.work);
  absl::Status status = inner_->Notify(
      [done = std::move(done), reported, plan = plan_, met = met_](const absl::Status& work) {
        absl::Status result = plan->Health();
        result.Update(reported);
        {
          MutexLock lock(&met->mutex);
          result.Update(std::exchange(met->first, absl::OkStatus()));
        }
        result.Update(work);
        done(std::move(result));
      });
  if (!status.ok()) NoteWorkError(injected);  // the next Notify reports it
  return status;
}

bool FaultStream::BeginHere() {
  if (!plan_->quiet()) return false;
  {
    MutexLock lock(&mutex_);
    if (!work_error_.ok()) return false;
  }
  {
    MutexLock lock(&met_->mutex);
    if (!met_->first.ok()) return false;
  }
  return inner_->BeginHere();
}

absl::Status FaultStream::SignalWord(int32_t* word, int32_t value) {
  return Enqueue(DeviceOperation::kSignalWord, [&] { return inner_->SignalWord(word, value); });
}

absl::Status FaultStream::WaitWord(const int32_t* word, int32_t value) {
  return Enqueue(DeviceOperation::kWaitWord, [&] { return inner_->WaitWord(word, value); });
}

}  // namespace kvtier
