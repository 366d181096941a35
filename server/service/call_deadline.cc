#include "server/service/call_deadline.h"

#include <algorithm>
#include <chrono>

#include "server/core/error.h"
#include "server/core/limits.h"

namespace kvtier {

absl::Time DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock) {
  // A client that would wait for a day must not hold a control thread so long.
  const absl::Time limit = clock.Now() + kCallDurationMax;
  const std::chrono::system_clock::time_point deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return limit;
  return std::min(limit, absl::FromChrono(deadline));
}

absl::Status CheckNotExpired(absl::Time deadline, const Clock& clock) {
  if (clock.Now() < deadline) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE",
                   "the deadline passed before the call was started; nothing was done");
}

}  // namespace kvtier
