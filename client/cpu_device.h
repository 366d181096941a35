// CPU cores as a device. Internal to client/.
#pragma once

#include <memory>
#include <string>

#include "client/device.h"
#include "kernels/cpu/executor.h"

namespace kvtier::client {

class CpuDevice final : public Device {
 public:
  explicit CpuDevice(int32_t kernel_threads) : executor_(kernel_threads) {}

  bool host_readable() const override { return true; }
  absl::Status CheckTransport(const v1::Segment& segment) const override;
  absl::StatusOr<std::unique_ptr<Mapping>> Map(const v1::Segment& segment,
                                               const RedeemToken& redeem) override;
  absl::Status Reserve(const CacheShape& /*shape*/) override { return absl::OkStatus(); }
  absl::Status SwapIn(const SwapInParams& params, DeviceStreamRef stream) override;
  absl::Status ReplayPlan(const ReplayPlanParams& params, DeviceStreamRef stream) override;
  absl::Status Backup(const BackupParams& params, DeviceStreamRef stream) override;
  absl::Status Read(void* destination, const void* source, int64_t bytes) const override;
  absl::Status Write(void* destination, const void* source, int64_t bytes) const override;
  absl::Status Finish() override { return absl::OkStatus(); }
  absl::Status Signal(int32_t* word, int32_t number, DeviceStreamRef stream) override;
  absl::Status Wait(const int32_t* word, int32_t number, DeviceStreamRef stream) override;

 private:
  cpu::Executor executor_;
};

}  // namespace kvtier::client
