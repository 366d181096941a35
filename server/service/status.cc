#include "server/service/status.h"

#include <string>

#include "proto/google/rpc/error_details.pb.h"
#include "server/core/error.h"

namespace kvtier {
namespace {

constexpr char kTypePrefix[] = "type.googleapis.com";
constexpr char kDomain[] = "kvtier.v1";

// The two sets of codes are one: the canonical codes.
static_assert(static_cast<int>(absl::StatusCode::kInvalidArgument) ==
              grpc::StatusCode::INVALID_ARGUMENT);
static_assert(static_cast<int>(absl::StatusCode::kNotFound) == grpc::StatusCode::NOT_FOUND);
static_assert(static_cast<int>(absl::StatusCode::kResourceExhausted) ==
              grpc::StatusCode::RESOURCE_EXHAUSTED);
static_assert(static_cast<int>(absl::StatusCode::kUnavailable) == grpc::StatusCode::UNAVAILABLE);
static_assert(static_cast<int>(absl::StatusCode::kUnauthenticated) ==
              grpc::StatusCode::UNAUTHENTICATED);

}  // namespace

grpc::Status ToGrpcStatus(const absl::Status& status) {
  if (status.ok()) return grpc::Status::OK;
  const std::string message(status.message());
  const int code = static_cast<int>(status.code());
  ::google::rpc::ErrorInfo info;
  info.set_reason(ErrorReasonOf(status));
  if (info.reason().empty()) info.set_reason("INTERNAL");
  info.set_domain(kDomain);
  for (const auto& [key, value] : ErrorMetadataOf(status)) (*info.mutable_metadata())[key] = value;

  ::google::rpc::Status details;
  details.set_code(code);
  details.set_message(message);
  details.add_details()->PackFrom(info, kTypePrefix);
  if (const std::optional<absl::Duration> delay = RetryDelayOf(status); delay.has_value()) {
    ::google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(absl::ToInt64Seconds(*delay));
    retry.mutable_retry_delay()->set_nanos(
        static_cast<int32_t>(absl::ToInt64Nanoseconds(*delay % absl::Seconds(1))));
    details.add_details()->PackFrom(retry, kTypePrefix);
  }
  return {static_cast<grpc::StatusCode>(code), message, details.SerializeAsString()};
}

}  // namespace kvtier
