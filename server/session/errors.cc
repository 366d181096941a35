#include "server/session/errors.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "server/core/error.h"

namespace kvtier {

absl::Status SessionUnknown(absl::string_view session_id) {
  return MakeError(absl::StatusCode::kNotFound, "SESSION_UNKNOWN",
                   absl::StrCat("no session '", session_id, "': it ended or never was"),
                   {{"session_id", std::string(session_id)}});
}

absl::Status BootIdStale(absl::string_view boot_id, absl::string_view expected) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "BOOT_ID_STALE",
                   absl::StrCat("the session is of an earlier daemon (boot id ", boot_id,
                                "); this one is ", expected, ": open a new session"),
                   {{"boot_id", std::string(boot_id)}, {"expected", std::string(expected)}});
}

absl::Status SessionClosed(absl::string_view session_id) {
  return MakeError(absl::StatusCode::kAborted, "SESSION_CLOSED",
                   "the session was closed, or left the cache, while the call ran; nothing of "
                   "the call remains",
                   {{"session_id", std::string(session_id)}});
}

absl::Status CacheUnknown(absl::string_view cache) {
  return MakeError(absl::StatusCode::kNotFound, "CACHE_UNKNOWN",
                   absl::StrCat("no cache '", cache, "', or the session is not attached to it"),
                   {{"cache", std::string(cache)}});
}

absl::Status RequestUnknown(absl::string_view request_id, int row) {
  ErrorMetadata metadata = {{"request_id", std::string(request_id)}};
  if (row >= 0) metadata["row"] = absl::StrCat(row);
  return MakeError(absl::StatusCode::kNotFound, "REQUEST_UNKNOWN",
                   absl::StrCat("no request '", request_id, "'",
                                row >= 0 ? absl::StrCat(" (row ", row, ")") : "",
                                " is admitted by this session on this cache"),
                   metadata);
}

absl::Status AccessDenied(absl::string_view message, absl::string_view needs,
                          const std::map<std::string, std::string>& metadata) {
  ErrorMetadata all = metadata;
  all["needs"] = std::string(needs);
  return MakeError(absl::StatusCode::kPermissionDenied, "ACCESS_DENIED", message, all);
}

absl::Status Draining() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                   "the daemon drains and admits nothing new; use another node or wait for the "
                   "next daemon");
}

absl::Status DeadlinePassed(absl::string_view rolled_back) {
  return MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE",
                   absl::StrCat("the deadline passed; ", rolled_back));
}

absl::Status LimitReached(absl::string_view what, int64_t limit, absl::Duration retry_delay) {
  return MakeRetryableError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                            absl::StrCat("no more than ", limit, " ", what, "; try again later"),
                            retry_delay, {{"limit", absl::StrCat(limit)}});
}

absl::Status UserLimitReached(absl::string_view what, absl::string_view setting,
                              const UserUse& use) {
  const std::string text =
      absl::StrCat("user ", use.uid, " has ", use.used, " ", what, " of at most ", use.limit,
                   " (the daemon's --", setting, "), and this takes ", use.wanted);
  const ErrorMetadata metadata = {{"limit", absl::StrCat(use.limit)},
                                  {"used", absl::StrCat(use.used)},
                                  {"requested", absl::StrCat(use.wanted)},
                                  {"uid", absl::StrCat(use.uid)},
                                  {"setting", std::string(setting)}};
  if (use.wanted > use.limit) {
    return MakeError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                     absl::StrCat(text, ": more than there ever is"), metadata);
  }
  return MakeRetryableError(absl::StatusCode::kResourceExhausted, "LIMIT_REACHED",
                            absl::StrCat(text, ": end others, or try again later"), kFullRetryDelay,
                            metadata);
}

}  // namespace kvtier
