// absl::Status of the daemon as grpc::Status on the wire.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/grpcpp.h"

namespace kvtier {

// Code and text as they are; reason, metadata and retry delay as google.rpc.ErrorInfo and
// RetryInfo in the status details. An error without a reason is one of ours all the same: it goes
// out as INTERNAL.
grpc::Status ToGrpcStatus(const absl::Status& status);

}  // namespace kvtier
