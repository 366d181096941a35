#include "server/device/fault/fault_backend.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"
#include "server/core/status_macros.h"
#include "server/device/fault/fault_stream.h"

namespace kvtier {
namespace {

// Waits where the plan says so; then what the call shall return.
absl::Status Ask(FaultPlan& plan, DeviceOperation operation) {
  const FaultPlan::Verdict verdict = plan.OnCall(operation);
  if (verdict.hold) verdict.hold();
  if (!verdict.call.ok()) return verdict.call;
  return verdict.work;  // a call that waits for its own work
}

class FaultMemory final : public DeviceMemory {
 public:
  FaultMemory(std::unique_ptr<DeviceMemory> inner, std::shared_ptr<FaultPlan> plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}
  ~FaultMemory() override { (void)Ask(*plan_, DeviceOperation::kFree); }

  uint8_t* data() const override { return inner_->data(); }
  int64_t size_bytes() const override { return inner_->size_bytes(); }
  absl::StatusOr<MemoryHandle> Export() const override {
    KVTIER_RETURN_IF_ERROR(Ask(*plan_, DeviceOperation::kExport));
    return inner_->Export();
  }

 private:
  const std::unique_ptr<DeviceMemory> inner_;
  const std::shared_ptr<FaultPlan> plan_;
};

class FaultHostRegistration final : public HostRegistration {
 public:
  FaultHostRegistration(std::unique_ptr<HostRegistration> inner, std::shared_ptr<FaultPlan> plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}
  ~FaultHostRegistration() override { (void)Ask(*plan_, DeviceOperation::kUnregisterHost); }

 private:
  const std::unique_ptr<HostRegistration> inner_;
  const std::shared_ptr<FaultPlan> plan_;
};

class FaultBackend final : public DeviceBackend {
 public:
  FaultBackend(std::unique_ptr<DeviceBackend> inner, std::shared_ptr<FaultPlan> plan)
      : inner_(std::move(inner)), plan_(std::move(plan)) {}

  std::vector<DeviceInfo> Devices() const override { return inner_->Devices(); }

  absl::StatusOr<std::unique_ptr<DeviceMemory>> Allocate(absl::string_view device_uuid,
                                                         absl::string_view purpose,
                                                         int64_t bytes) override {
    KVTIER_RETURN_IF_ERROR(Ask(*plan_, DeviceOperation::kAllocate));
    KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceMemory> memory,
                            inner_->Allocate(device_uuid, purpose, bytes));
    return std::make_unique<FaultMemory>(std::move(memory), plan_);
  }

  absl::StatusOr<std::unique_ptr<DeviceStream>> CreateStream(
      absl::string_view device_uuid) override {
    KVTIER_RETURN_IF_ERROR(Ask(*plan_, DeviceOperation::kCreateStream));
    KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<DeviceStream> stream,
                            inner_->CreateStream(device_uuid));
    return std::make_unique<FaultStream>(std::move(stream), plan_);
  }

  absl::StatusOr<std::unique_ptr<HostRegistration>> RegisterHost(uint8_t* data,
                                                                 int64_t bytes) override {
    KVTIER_RETURN_IF_ERROR(Ask(*plan_, DeviceOperation::kRegisterHost));
    KVTIER_ASSIGN_OR_RETURN(std::unique_ptr<HostRegistration> registration,
                            inner_->RegisterHost(data, bytes));
    return std::make_unique<FaultHostRegistration>(std::move(registration), plan_);
  }

  void StopRegistering() override { inner_->StopRegistering(); }

  absl::Status Health() const override {
    KVTIER_RETURN_IF_ERROR(plan_->Health());
    return inner_->Health();
  }

 private:
  const std::unique_ptr<DeviceBackend> inner_;
  const std::shared_ptr<FaultPlan> plan_;
};

}  // namespace

std::unique_ptr<DeviceBackend> MakeFaultInjectingBackend(std::unique_ptr<DeviceBackend> inner,
                                                         std::shared_ptr<FaultPlan> plan) {
  return std::make_unique<FaultBackend>(std::move(inner), std::move(plan));
}

absl::StatusOr<int64_t> FailEachCall(FaultPlan* plan, const absl::Status& fault,
                                     int64_t attempts_max,
                                     const std::function<absl::Status()>& attempt) {
  for (int64_t nth = 1; nth <= attempts_max; ++nth) {
    const int64_t faults_before = plan->faults();
    plan->Clear();
    plan->FailNthCall(nth, fault);
    const absl::Status status = attempt();
    const bool failed = plan->faults() != faults_before;
    plan->Clear();
    if (!failed) {
      if (!status.ok()) return status;
      return nth - 1;
    }
    if (status.ok()) {
      return InternalError(absl::StrCat("call ", nth, " failed, and the attempt returned OK"));
    }
  }
  return InternalError(absl::StrCat("no end after ", attempts_max, " attempts"));
}

}  // namespace kvtier
