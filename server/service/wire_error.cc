#include "server/service/wire_error.h"

#include <string>

#include "server/core/error.h"

namespace kvtier {
namespace {

// For errors that came without a reason: of a library, or of gRPC itself.
const char* ReasonOfCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return "FIELD_INVALID";
    case absl::StatusCode::kDeadlineExceeded:
      return "DEADLINE";
    case absl::StatusCode::kResourceExhausted:
      return "LIMIT_REACHED";
    case absl::StatusCode::kUnimplemented:
      return "NOT_IMPLEMENTED";
    default:
      return "INTERNAL";
  }
}

}  // namespace

ErrorDetails DetailsOf(const absl::Status& status) {
  ErrorDetails details{.reason = ErrorReasonOf(status),
                       .metadata = ErrorMetadataOf(status),
                       .retry_delay = RetryDelayOf(status)};
  if (details.reason.empty() && !status.ok()) details.reason = ReasonOfCode(status.code());
  return details;
}

grpc::Status ToWire(const absl::Status& status) { return ToGrpcStatus(status, DetailsOf(status)); }

v1::StepError ToStepError(const absl::Status& status) {
  // By way of the wire, so that both forms are cut and cleaned alike.
  const DecodedStatus decoded = FromGrpcStatus(ToWire(status));
  v1::StepError error;
  error.set_code(static_cast<int32_t>(decoded.status.code()));
  error.set_message(std::string(decoded.status.message()));
  error.set_reason(decoded.details.reason);
  error.mutable_metadata()->insert(decoded.details.metadata.begin(),
                                   decoded.details.metadata.end());
  return error;
}

}  // namespace kvtier
