// When a call must be done.
#pragma once

#include <chrono>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "server/core/clock.h"
#include "server/core/limits.h"

namespace kvtier {

// The client's deadline, at most `longest` from now; where it said none, kCallDurationMax.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock,
                      absl::Duration longest = kCallDurationMax);
// The same of the time point by which gRPC tells it.
absl::Time LimitDeadline(std::chrono::system_clock::time_point of_client, absl::Time now,
                         absl::Duration longest);

// OK, or DEADLINE_EXCEEDED / DEADLINE: nothing may be executed for the call any more.
absl::Status CheckNotExpired(absl::Time deadline, const Clock& clock);

}  // namespace kvtier
