// absl::Status <-> grpc::Status, with google.rpc.ErrorInfo and RetryInfo.
//
//   return ToGrpcStatus(status, {.reason = "BLOCKS_EXHAUSTED", .metadata = {{"free", "3"}}});
//   DecodedStatus decoded = FromGrpcStatus(call_status);
//   if (decoded.details.reason == "BLOCKS_EXHAUSTED") ...
//
// On the wire the details are a serialized google.rpc.Status in the trailer
// grpc-status-details-bin, as every gRPC library reads them.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/support/status.h"

namespace kvtier {

// google.rpc.ErrorInfo.domain of every error of ours.
inline constexpr char kErrorDomain[] = "kvtier.v1";

// What an error says to machines. Neither the server's nor the client's type: both have
// their own way to carry it in an absl::Status.
struct ErrorDetails {
  std::string reason;  // a value of kvtier.v1.ErrorReason without its prefix; "" none
  std::map<std::string, std::string> metadata;
  std::optional<absl::Duration> retry_delay;  // when another try makes sense
};

// Numbers are the same on both sides; a number that is no code is kUnknown / UNKNOWN.
grpc::StatusCode ToGrpcCode(absl::StatusCode code);
// `code` may be what a peer sent: a grpc::StatusCode cannot have every value.
absl::StatusCode ToAbslCode(int code);

// OK stays OK and loses its details. Metadata and text may hold any bytes: what is not UTF-8
// is replaced by '?', as protobuf strings must be UTF-8. What is too long for a trailer is cut
// (proto/support/wire_limits.h): a client that gets too long ones sees another error instead.
grpc::Status ToGrpcStatus(const absl::Status& status, const ErrorDetails& details);

struct DecodedStatus {
  absl::Status status;  // code and text alone
  ErrorDetails details;
};

// Details that are not well formed, or of another domain, are left out.
DecodedStatus FromGrpcStatus(const grpc::Status& status);

// `text` with every byte that is not part of valid UTF-8 replaced by '?'.
std::string ToUtf8(const std::string& text);

}  // namespace kvtier
