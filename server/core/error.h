// Errors with a reason that a machine can read.
//
// Below the service floor an error is an absl::Status that carries a reason (UPPER_SNAKE, a
// value of kvtier.v1.ErrorReason without its prefix) and metadata; proto/support turns it into
// a gRPC status with google.rpc.ErrorInfo.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace kvtier {

using ErrorMetadata = std::map<std::string, std::string>;

// `message` says what happened, with the offending id, the limit and the value, and what to do.
absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                       const ErrorMetadata& metadata = {});

// The same with a hint when to try again.
absl::Status MakeRetryableError(absl::StatusCode code, absl::string_view reason,
                                absl::string_view message, absl::Duration retry_delay,
                                const ErrorMetadata& metadata = {});

// The reason of `status`, or "" where it has none.
std::string ErrorReasonOf(const absl::Status& status);
ErrorMetadata ErrorMetadataOf(const absl::Status& status);
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

// INVALID_ARGUMENT / FIELD_INVALID about `field`.
absl::Status FieldInvalid(absl::string_view field, absl::string_view value, absl::string_view limit,
                          absl::string_view advice = "");

// INTERNAL / INTERNAL: an invariant of the daemon's own does not hold.
absl::Status InternalError(absl::string_view message);

}  // namespace kvtier
