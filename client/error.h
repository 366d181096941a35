// Errors of the client library.
//
// Every function of the library returns absl::Status or absl::StatusOr. Errors that the daemon
// answered, and those that the library makes in its place, carry a reason (a value of
// kvtier.v1.ErrorReason without its prefix, "BLOCKS_EXHAUSTED") and metadata, listed there:
//
//   absl::StatusOr<AssignedBlocks> blocks = request->AssignBlocks(4);
//   if (ErrorReasonOf(blocks.status()) == "BLOCKS_EXHAUSTED") Preempt();
//
// Nothing is CANCELLED: the library cancels no call that somebody waits for, and where the daemon's
// gRPC does, at the end of a shutdown, that is UNAVAILABLE / DRAINING.
// Without a reason: UNAVAILABLE, the daemon cannot be reached or is lost; DEADLINE_EXCEEDED, it
// did not answer in time; FAILED_PRECONDITION, the call is made where it cannot be.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

namespace kvtier::client {

using ErrorMetadata = std::map<std::string, std::string>;

// The reason of `status`, or "" where it has none.
std::string ErrorReasonOf(const absl::Status& status);
// What the reason is about; empty where there is nothing.
ErrorMetadata ErrorMetadataOf(const absl::Status& status);
// When the daemon says that another try makes sense.
std::optional<absl::Duration> RetryDelayOf(const absl::Status& status);

// ---- For the library itself.

// Without a reason, the metadata and the delay are left out.
absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                       const ErrorMetadata& metadata = {},
                       std::optional<absl::Duration> retry_delay = std::nullopt);

// INVALID_ARGUMENT / FIELD_INVALID about an argument of a call of the library.
absl::Status ArgumentError(absl::string_view field, absl::string_view value,
                           absl::string_view limit);

// INTERNAL / INTERNAL: the daemon answered what it must not. `what` says what is wrong.
absl::Status MalformedAnswer(absl::string_view what);

}  // namespace kvtier::client
