// The errors of the session floor, worded once.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace kvtier {

// When it pays to ask again after a bound on work in flight was met: a step's time.
inline constexpr absl::Duration kBusyRetryDelay = absl::Milliseconds(10);
// The same where something else has to leave first: a session, a cache.
inline constexpr absl::Duration kFullRetryDelay = absl::Seconds(1);

absl::Status SessionUnknown(absl::string_view session_id);
absl::Status BootIdStale(absl::string_view boot_id, absl::string_view expected);
absl::Status SessionClosed(absl::string_view session_id);
absl::Status CacheUnknown(absl::string_view cache);
// `row` of a batch, or -1.
absl::Status RequestUnknown(absl::string_view request_id, int row = -1);
// `needs` says what would be let in: "owner", "viewer"; `metadata` of what.
absl::Status AccessDenied(absl::string_view message, absl::string_view needs,
                          const std::map<std::string, std::string>& metadata = {});
absl::Status Draining();
// `rolled_back` says what state the caller finds.
absl::Status DeadlinePassed(absl::string_view rolled_back);
absl::Status LimitReached(absl::string_view what, int64_t limit, absl::Duration retry_delay);
// Of what one user may have: `setting` bounds it. There is something to wait for, unless `wanted`
// alone is too much.
struct UserUse {
  int32_t uid = -1;
  int64_t used = 0, wanted = 0, limit = 0;
};
absl::Status UserLimitReached(absl::string_view what, absl::string_view setting,
                              const UserUse& use);

}  // namespace kvtier
