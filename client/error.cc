#include "client/error.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "proto/google/rpc/error_details.pb.h"
#include "proto/support/status.h"

namespace kvtier::client {
namespace {

using ::google::rpc::ErrorInfo;
using ::google::rpc::RetryInfo;

constexpr char kErrorInfoUrl[] = "type.googleapis.com/google.rpc.ErrorInfo";
constexpr char kRetryInfoUrl[] = "type.googleapis.com/google.rpc.RetryInfo";

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
                       const ErrorMetadata& metadata, std::optional<absl::Duration> retry_delay) {
  absl::Status status(code, message);
  if (reason.empty()) return status;
  ErrorInfo info;
  info.set_reason(std::string(reason));
  info.set_domain(kErrorDomain);
  info.mutable_metadata()->insert(metadata.begin(), metadata.end());
  status.SetPayload(kErrorInfoUrl, absl::Cord(info.SerializeAsString()));
  if (retry_delay.has_value()) {
    RetryInfo retry;
    const absl::Duration delay = std::clamp(*retry_delay, absl::ZeroDuration(), absl::Hours(24));
    const int64_t seconds = absl::ToInt64Seconds(delay);
    retry.mutable_retry_delay()->set_seconds(seconds);
    retry.mutable_retry_delay()->set_nanos(
        static_cast<int32_t>(absl::ToInt64Nanoseconds(delay - absl::Seconds(seconds))));
    status.SetPayload(kRetryInfoUrl, absl::Cord(retry.SerializeAsString()));
  }
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
