// What the client and the daemon say to each other below the messages of the API: errors in gRPC
// statuses, descriptors on a socket. Internal to client/.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "grpcpp/grpcpp.h"

namespace kvtier::client {

// `status` with its google.rpc.ErrorInfo and RetryInfo as reason, metadata and retry delay
// (client/error.h). Details that are not well formed are left out. CANCELLED without a reason, of a
// call that nobody on this side has cancelled, is UNAVAILABLE / DRAINING: the daemon's gRPC begins
// no more calls.
absl::Status FromGrpcStatus(const grpc::Status& status);

// Sends `token` to the first descriptor socket of `paths` that somebody listens at, and receives
// one descriptor, which the caller closes. Errors: UNAVAILABLE (nobody listens, with each path and
// why; or the daemon went away), DEADLINE_EXCEEDED, NOT_FOUND / SESSION_UNKNOWN (the daemon does
// not know the token), INTERNAL (an answer that is none).
absl::StatusOr<int> RedeemAt(const std::vector<std::string>& paths, const std::string& token,
                             absl::Duration timeout);

}  // namespace kvtier::client
