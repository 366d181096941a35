#include "client/error.h"

#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "proto/google/rpc/error_details.pb.h"

namespace kvtier::client {
namespace {

using ::google::rpc::ErrorInfo;
using ::google::rpc::RetryInfo;

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";
constexpr char kDomain[] = "kvtier.v1";

// The message that `status` carries under `url`; an empty one if there is none.
template <typename Message>
Message PayloadOf(const absl::Status& status, const char* url) {
  Message message;
  const absl::optional<absl::Cord> payload = status.GetPayload(url);
  if (payload.has_value() && !message.ParseFromString(std::string(*payload))) message.Clear();
  return message;
}

}  // namespace

std::string ErrorReasonOf(const absl::Status& status) {
  return PayloadOf<ErrorInfo>(status, kErrorInfoUrl).reason();
}

ErrorMetadata ErrorMetadataOf(const absl::Status& status) {
  const auto info = PayloadOf<ErrorInfo>(status, kErrorInfoUrl);
  return {info.metadata().begin(), info.metadata().end()};
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  if (!status.GetPayload(kRetryInfoUrl).has_value()) return std::nullopt;
  const auto info = PayloadOf<RetryInfo>(status, kRetryInfoUrl);
  return absl::Seconds(info.retry_delay().seconds()) +
         absl::Nanoseconds(info.retry_delay().nanos());
}

absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                       const ErrorMetadata& metadata) {
  absl::Status status(code, message);
  if (reason.empty()) return status;
  ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain(kDomain);
  info.mutable_metadata()->insert(metadata.begin(), metadata.end());
  status.SetPayload(kErrorInfoUrl, absl::Cord(info.SerializeAsString()));
  return status;
}

absl::Status ArgumentError(absl::string_view field, absl::string_view value,
                           absl::string_view limit) {
  return MakeError(absl::StatusCode::kInvalidArgument, "FIELD_INVALID",
                   absl::StrCat(field, " is ", value, "; it must be ", limit),
                   {{"field", std::string(field)},
                    {"value", std::string(value)},
                    {"limit", std::string(limit)}});
}

absl::Status MalformedAnswer(absl::string_view what) {
  return MakeError(absl::StatusCode::kInternal, "INTERNAL",
                   absl::StrCat("the daemon's answer makes no sense: ", what));
}

}  // namespace kvtier::client
