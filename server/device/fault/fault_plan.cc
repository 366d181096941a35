#include "server/device/fault/fault_plan.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

constexpr std::array<absl::string_view, kDeviceOperationCount> kNames = {
    "Allocate",   "Export",     "CreateStream", "RegisterHost",  "SwapIn",        "ReplayPlan",
    "Backup",     "Invalidate", "ResetRegion",  "Write",         "Read",          "Notify",
    "SignalWord", "WaitWord",   "Free",         "DestroyStream", "UnregisterHost"};

bool CanFail(DeviceOperation operation) { return operation < DeviceOperation::kFree; }

}  // namespace

absl::string_view DeviceOperationName(DeviceOperation operation) {
  return kNames[static_cast<size_t>(operation)];
}

void Delay::State::Pass() {
  MutexLock lock(&mutex);
  reached = true;
  changed.NotifyAll();
  while (!released) changed.Wait(&mutex);
}

void Delay::WaitUntilReached() {
  MutexLock lock(&state_->mutex);
  while (!state_->reached) state_->changed.Wait(&state_->mutex);
}

bool Delay::reached() const {
  MutexLock lock(&state_->mutex);
  return state_->reached;
}

void Delay::Release() {
  MutexLock lock(&state_->mutex);
  state_->released = true;
  state_->changed.NotifyAll();
}

void FaultPlan::FailNth(DeviceOperation operation, int64_t nth, absl::Status status) {
  MutexLock lock(&mutex_);
  of(operation).faults[of(operation).calls + nth] = {.status = std::move(status)};
}

void FaultPlan::FailNthCall(int64_t nth, absl::Status status) {
  MutexLock lock(&mutex_);
  any_faults_[failable_calls_ + nth] = std::move(status);
}

void FaultPlan::FailNthCallHere(int64_t nth, absl::Status status, int64_t count) {
  MutexLock lock(&mutex_);
  own_ = {.thread = std::this_thread::get_id(),
          .calls_before = nth - 1,
          .faults_left = count,
          .status = std::move(status)};
}

void FaultPlan::FailEvery(DeviceOperation operation, absl::Status status) {
  MutexLock lock(&mutex_);
  of(operation).every = std::move(status);
}

void FaultPlan::FailWorkNth(DeviceOperation operation, int64_t nth, absl::Status status) {
  MutexLock lock(&mutex_);
  of(operation).faults[of(operation).calls + nth] = {.status = std::move(status), .at_call = false};
}

std::unique_ptr<Delay> FaultPlan::DelayNth(DeviceOperation operation, int64_t nth) {
  auto state = std::make_shared<Delay::State>();
  MutexLock lock(&mutex_);
  of(operation).delays[of(operation).calls + nth] = state;
  return std::unique_ptr<Delay>(new Delay(std::move(state)));
}

void FaultPlan::BeforeNth(DeviceOperation operation, int64_t nth, std::function<void()> what) {
  MutexLock lock(&mutex_);
  of(operation).before[of(operation).calls + nth] = std::move(what);
}

void FaultPlan::LoseDevice(absl::string_view cause) {
  MutexLock lock(&mutex_);
  lost_ = MakeError(absl::StatusCode::kUnavailable, "DEVICE_LOST",
                    absl::StrCat("the device is lost: ", cause),
                    {{"device_error", std::string(cause)}});
}

void FaultPlan::Clear() {
  MutexLock lock(&mutex_);
  for (Operation& operation : operations_) operation = {.calls = operation.calls};
  any_faults_.clear();
  own_ = {};
  lost_ = absl::OkStatus();
}

int64_t FaultPlan::calls(DeviceOperation operation) const {
  MutexLock lock(&mutex_);
  return operations_[static_cast<size_t>(operation)].calls;
}

int64_t FaultPlan::faults() const {
  MutexLock lock(&mutex_);
  return faults_;
}

bool FaultPlan::quiet() const {
  MutexLock lock(&mutex_);
  for (const Operation& operation : operations_) {
    if (!operation.faults.empty() || !operation.delays.empty() || !operation.every.ok()) {
      return false;
    }
  }
  return any_faults_.empty() && own_.faults_left == 0 && lost_.ok();
}

FaultPlan::Verdict FaultPlan::OnCall(DeviceOperation operation) {
  std::function<void()> before;
  Verdict verdict = Judge(operation, &before);
  if (before) before();
  return verdict;
}

FaultPlan::Verdict FaultPlan::Judge(DeviceOperation operation, std::function<void()>* before) {
  Verdict verdict;
  MutexLock lock(&mutex_);
  Operation& plan = of(operation);
  ++plan.calls;
  if (const auto delay = plan.delays.find(plan.calls); delay != plan.delays.end()) {
    verdict.hold = [state = delay->second] { state->Pass(); };
    plan.delays.erase(delay);
  }
  if (!CanFail(operation)) return verdict;
  if (const auto found = plan.before.find(plan.calls); found != plan.before.end()) {
    *before = std::move(found->second);
    plan.before.erase(found);
  }
  ++failable_calls_;
  if (const auto fault = plan.faults.find(plan.calls); fault != plan.faults.end()) {
    (fault->second.at_call ? verdict.call : verdict.work) = fault->second.status;
    plan.faults.erase(fault);
  }
  verdict.call.Update(plan.every);
  if (const auto fault = any_faults_.find(failable_calls_); fault != any_faults_.end()) {
    verdict.call.Update(fault->second);
    any_faults_.erase(fault);
  }
  if (own_.faults_left > 0 && own_.thread == std::this_thread::get_id() &&
      --own_.calls_before < 0) {
    verdict.call.Update(own_.status);
    --own_.faults_left;
  }
  if (!lost_.ok()) verdict.call = lost_;
  if (!verdict.call.ok() || !verdict.work.ok()) ++faults_;
  return verdict;
}

absl::Status FaultPlan::Health() const {
  MutexLock lock(&mutex_);
  return lost_;
}

}  // namespace kvtier
