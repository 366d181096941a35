#include "server/core/error.h"

#include <algorithm>
#include <utility>

#include "absl/strings/cord.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace kvtier {
namespace {

// Payload URLs of our own: gRPC's status conversion must not mistake them for its details.
constexpr char kReasonUrl[] = "kvtier/reason";
constexpr char kMetadataUrl[] = "kvtier/metadata";
constexpr char kRetryDelayUrl[] = "kvtier/retry_delay";

std::string PayloadOf(const absl::Status& status, absl::string_view url) {
  const absl::optional<absl::Cord> payload = status.GetPayload(url);
  return payload.has_value() ? std::string(*payload) : std::string();
}

// Each string as "<bytes>:<bytes themselves>", so that any byte may occur in a value.
void AppendString(absl::string_view value, std::string* out) {
  absl::StrAppend(out, value.size(), ":", value);
}

// Takes one string off the front of `in`; false where it is not well formed.
bool ConsumeString(absl::string_view* in, std::string* value) {
  const size_t colon = in->find(':');
  if (colon == absl::string_view::npos) return false;
  uint64_t size = 0;
  if (!absl::SimpleAtoi(in->substr(0, colon), &size)) return false;
  in->remove_prefix(colon + 1);
  if (size > in->size()) return false;
  value->assign(in->data(), size);
  in->remove_prefix(size);
  return true;
}

}  // namespace

absl::Status MakeError(absl::StatusCode code, absl::string_view reason, absl::string_view message,
                       const ErrorMetadata& metadata) {
  // An "error" with code OK would be taken for success by every caller.
  if (code == absl::StatusCode::kOk) code = absl::StatusCode::kInternal;
  absl::Status status(code, message);
  status.SetPayload(kReasonUrl, absl::Cord(reason));
  if (!metadata.empty()) {
    std::string encoded;
    for (const auto& [key, value] : metadata) {
      AppendString(key, &encoded);
      AppendString(value, &encoded);
    }
    status.SetPayload(kMetadataUrl, absl::Cord(std::move(encoded)));
  }
  return status;
}

absl::Status MakeRetryableError(absl::StatusCode code, absl::string_view reason,
                                absl::string_view message, absl::Duration retry_delay,
                                const ErrorMetadata& metadata) {
  absl::Status status = MakeError(code, reason, message, metadata);
  const absl::Duration delay = std::max(retry_delay, absl::ZeroDuration());
  status.SetPayload(kRetryDelayUrl, absl::Cord(absl::StrCat(absl::ToInt64Nanoseconds(delay))));
  return status;
}

std::string ErrorReasonOf(const absl::Status& status) { return PayloadOf(status, kReasonUrl); }

ErrorMetadata ErrorMetadataOf(const absl::Status& status) {
  const std::string encoded = PayloadOf(status, kMetadataUrl);
  absl::string_view rest = encoded;
  ErrorMetadata metadata;
  std::string key, value;
  while (!rest.empty()) {
    if (!ConsumeString(&rest, &key) || !ConsumeString(&rest, &value)) break;
    metadata[key] = value;
  }
  return metadata;
}

std::optional<absl::Duration> RetryDelayOf(const absl::Status& status) {
  int64_t nanoseconds = 0;
  if (!absl::SimpleAtoi(PayloadOf(status, kRetryDelayUrl), &nanoseconds)) return std::nullopt;
  return absl::Nanoseconds(nanoseconds);
}

absl::Status FieldInvalid(absl::string_view field, absl::string_view value, absl::string_view limit,
                          absl::string_view advice) {
  std::string message = absl::StrCat(field, " is ", value, "; it must be ", limit);
  if (!advice.empty()) absl::StrAppend(&message, ": ", advice);
  return MakeError(absl::StatusCode::kInvalidArgument, "FIELD_INVALID", message,
                   {{"field", std::string(field)},
                    {"value", std::string(value)},
                    {"limit", std::string(limit)}});
}

absl::Status InternalError(absl::string_view message) {
  return MakeError(absl::StatusCode::kInternal, "INTERNAL", message);
}

}  // namespace kvtier
