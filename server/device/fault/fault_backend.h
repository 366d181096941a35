// A backend around another one that fails, waits and counts as a FaultPlan says. For tests.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "server/device/backend.h"
#include "server/device/fault/fault_plan.h"

namespace kvtier {

// What it makes may outlive it. With an empty plan it behaves as `inner` does.
std::unique_ptr<DeviceBackend> MakeFaultInjectingBackend(std::unique_ptr<DeviceBackend> inner,
                                                         std::shared_ptr<FaultPlan> plan);

// Runs `attempt` with its first call of the backend failing, then its second, and so on, until
// an attempt in which no call is left to fail: that one must succeed. Returns how many calls
// were failed. `attempt` leaves things as it found them, whether it fails or not, and is the
// only user of `plan` meanwhile.
//
// Errors: INTERNAL for an attempt that returned OK although one of its calls had failed, or if
// `attempts_max` attempts were not enough; else what the attempt without a fault returned.
absl::StatusOr<int64_t> FailEachCall(FaultPlan* plan, const absl::Status& fault,
                                     int64_t attempts_max,
                                     const std::function<absl::Status()>& attempt);

}  // namespace kvtier
