// The kinds of hostile peers that speak the API, up to the point where they stop to read.
#pragma once

#include "absl/status/statusor.h"
#include "tests/load/hostile.h"

namespace kvtier::load {

// options.count sessions on one connection whose window is 0 bytes.
absl::StatusOr<HostileResult> LeaveSessionsUnread(const HostileOptions& options);
// Steps of some bytes whose answers have megabytes, on a RunSteps call that is never read.
absl::StatusOr<HostileResult> LeaveStepsUnread(const HostileOptions& options);
// The same by options.count SwapIn calls at a time on a connection whose window is 0 bytes.
absl::StatusOr<HostileResult> LeaveAnswersUnread(const HostileOptions& options);

}  // namespace kvtier::load
