#include "server/session/retention.h"

#include "absl/strings/str_cat.h"
#include "server/core/error.h"

namespace kvtier {

absl::Status CheckRetention(const AttachOptions& options, absl::Duration duration_max) {
  if (!options.retain.has_value()) return absl::OkStatus();
  const Retention& retain = *options.retain;
  if (retain.duration < absl::ZeroDuration() || retain.duration > duration_max) {
    return FieldInvalid("retain.duration", absl::FormatDuration(retain.duration),
                        absl::StrCat("0..", absl::FormatDuration(duration_max)),
                        "the operator sets the limit (--retain_duration_max)");
  }
  if (retain.blocks_max >= 0) return absl::OkStatus();
  return FieldInvalid("retain.blocks_max", absl::StrCat(retain.blocks_max), ">= 0");
}

}  // namespace kvtier
