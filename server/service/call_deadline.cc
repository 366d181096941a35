#include "server/service/call_deadline.h"

#include <algorithm>

#include "server/core/error.h"

namespace kvtier {

absl::Time DeadlineOf(const grpc::CallbackServerContext& context, const Clock& clock,
                      absl::Duration longest) {
  return LimitDeadline(context.deadline(), clock.Now(), longest);
}

absl::Time LimitDeadline(std::chrono::system_clock::time_point of_client, absl::Time now,
                         absl::Duration longest) {
  if (of_client == std::chrono::system_clock::time_point::max()) return now + kCallDurationMax;
  // A client that would wait for a day must not hold a control thread so long.
  return std::min(now + longest, absl::FromChrono(of_client));
}

absl::Status CheckNotExpired(absl::Time deadline, const Clock& clock) {
  if (clock.Now() < deadline) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE",
                   "the deadline passed before the call was started; nothing was done");
}

}  // namespace kvtier
