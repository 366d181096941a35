// When a call must be done.
#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"
#include "server/core/clock.h"

namespace kvtier {

// The client's deadline, at most kCallDurationMax from now.
absl::Time DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock);

// OK, or DEADLINE_EXCEEDED / DEADLINE: nothing may be executed for the call any more.
absl::Status CheckNotExpired(absl::Time deadline, const Clock& clock);

}  // namespace kvtier
