// Errors of the floors below as gRPC statuses.
#pragma once

#include "absl/status/status.h"
#include "grpcpp/support/status.h"
#include "proto/kvtier/v1/kvtier.pb.h"
#include "proto/support/status.h"

namespace kvtier {

// Reason, metadata and retry hint of `status` (server/core/error.h). An error without a reason
// gets the one that fits its code, so that every error of ours has one.
ErrorDetails DetailsOf(const absl::Status& status);

grpc::Status ToWire(const absl::Status& status);

// The same inside RunSteps.
v1::StepError ToStepError(const absl::Status& status);

}  // namespace kvtier
