#include "client/cpu_device.h"

#include <cstring>

#include "client/error.h"
#include "kernels/cpu/cpu.h"

namespace kvtier::client {

absl::Status CpuDevice::CheckTransport(const v1::Segment& segment) const {
  return segment.transport() == v1::SEGMENT_TRANSPORT_POSIX_FD ? absl::OkStatus()
                                                               : TransportError(segment);
}

absl::StatusOr<std::unique_ptr<Mapping>> CpuDevice::Map(const v1::Segment& segment,
                                                        const RedeemToken& redeem) {
  if (absl::Status status = CheckTransport(segment); !status.ok()) return status;
  return MapFile(segment, redeem);
}

absl::Status CpuDevice::SwapIn(const SwapInParams& params, DeviceStreamRef /*stream*/) {
  cpu::SwapIn(params, executor_);
  return absl::OkStatus();
}

absl::Status CpuDevice::ReplayPlan(const ReplayPlanParams& params, DeviceStreamRef /*stream*/) {
  cpu::ReplayPlan(params, executor_);
  return absl::OkStatus();
}

absl::Status CpuDevice::Backup(const BackupParams& params, DeviceStreamRef /*stream*/) {
  cpu::Backup(params, executor_);
  return absl::OkStatus();
}

absl::Status CpuDevice::Read(void* destination, const void* source, int64_t bytes) const {
  std::memcpy(destination, source, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status CpuDevice::Write(void* destination, const void* source, int64_t bytes) const {
  std::memcpy(destination, source, static_cast<size_t>(bytes));
  return absl::OkStatus();
}

absl::Status CpuDevice::Signal(int32_t* /*word*/, int32_t /*number*/, DeviceStreamRef /*stream*/) {
  return ArgumentError("device_stream", "a stream", "null: the cache is on a CPU");
}

absl::Status CpuDevice::Wait(const int32_t* /*word*/, int32_t /*number*/,
                             DeviceStreamRef /*stream*/) {
  return ArgumentError("device_stream", "a stream", "null: the cache is on a CPU");
}

}  // namespace kvtier::client
