#include "proto/support/status.h"

#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "google/protobuf/duration.pb.h"
#include "proto/google/rpc/error_details.pb.h"
#include "proto/support/wire_limits.h"

namespace kvtier {
namespace {

// One place where codes meet, and the proof that they are the same numbers.
constexpr bool SameCode(grpc::StatusCode ours, absl::StatusCode theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}
static_assert(SameCode(grpc::StatusCode::OK, absl::StatusCode::kOk));
static_assert(SameCode(grpc::StatusCode::CANCELLED, absl::StatusCode::kCancelled));
static_assert(SameCode(grpc::StatusCode::UNKNOWN, absl::StatusCode::kUnknown));
static_assert(SameCode(grpc::StatusCode::INVALID_ARGUMENT, absl::StatusCode::kInvalidArgument));
static_assert(SameCode(grpc::StatusCode::DEADLINE_EXCEEDED, absl::StatusCode::kDeadlineExceeded));
static_assert(SameCode(grpc::StatusCode::NOT_FOUND, absl::StatusCode::kNotFound));
static_assert(SameCode(grpc::StatusCode::ALREADY_EXISTS, absl::StatusCode::kAlreadyExists));
static_assert(SameCode(grpc::StatusCode::PERMISSION_DENIED, absl::StatusCode::kPermissionDenied));
static_assert(SameCode(grpc::StatusCode::RESOURCE_EXHAUSTED, absl::StatusCode::kResourceExhausted));
static_assert(SameCode(grpc::StatusCode::FAILED_PRECONDITION,
                       absl::StatusCode::kFailedPrecondition));
static_assert(SameCode(grpc::StatusCode::ABORTED, absl::StatusCode::kAborted));
static_assert(SameCode(grpc::StatusCode::OUT_OF_RANGE, absl::StatusCode::kOutOfRange));
static_assert(SameCode(grpc::StatusCode::UNIMPLEMENTED, absl::StatusCode::kUnimplemented));
static_assert(SameCode(grpc::StatusCode::INTERNAL, absl::StatusCode::kInternal));
static_assert(SameCode(grpc::StatusCode::UNAVAILABLE, absl::StatusCode::kUnavailable));
static_assert(SameCode(grpc::StatusCode::DATA_LOSS, absl::StatusCode::kDataLoss));
static_assert(SameCode(grpc::StatusCode::UNAUTHENTICATED, absl::StatusCode::kUnauthenticated));

constexpr int kCodeMax = static_cast<int>(grpc::StatusCode::UNAUTHENTICATED);

// Bytes of the valid UTF-8 sequence at the front of `text`, or 0.
size_t SequenceLength(const std::string& text, size_t at) {
  const auto byte = [&](size_t i) { return static_cast<uint8_t>(text[at + i]); };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  const size_t length = first < 0xC2   ? 0
                        : first < 0xE0 ? 2
                        : first < 0xF0 ? 3
                        : first < 0xF5 ? 4
                                       : 0;
  if (length == 0 || at + length > text.size()) return 0;
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0) != 0x80) return 0;
  }
  const uint8_t second = byte(1);
  // Overlong forms, surrogates, and what lies past U+10FFFF.
  if (first == 0xE0 && second < 0xA0) return 0;
  if (first == 0xED && second > 0x9F) return 0;
  if (first == 0xF0 && second < 0x90) return 0;
  if (first == 0xF4 && second > 0x8F) return 0;
  return length;
}

// `text` as UTF-8, cut to `bytes` with a mark that something is missing.
std::string Clip(const std::string& text, size_t bytes) {
  if (text.size() <= bytes) return ToUtf8(text);
  constexpr char kMark[] = "...";
  size_t end = bytes - (sizeof(kMark) - 1);
  // Back to the start of a character.
  while (end > 0 && (static_cast<uint8_t>(text[end]) & 0xC0) == 0x80) --end;
  return ToUtf8(text.substr(0, end)) + kMark;
}

void FillErrorInfo(const ErrorDetails& details, google::rpc::ErrorInfo* info) {
  info->set_reason(details.reason);
  info->set_domain(kErrorDomain);
  size_t left = wire::kErrorMetadataBytesMax;
  for (const auto& [key, value] : details.metadata) {
    const std::string kept = Clip(value, wire::kErrorValueBytesMax);
    if (key.size() + kept.size() > left) break;
    left -= key.size() + kept.size();
    (*info->mutable_metadata())[ToUtf8(key)] = kept;
  }
}

void FillDuration(absl::Duration from, google::protobuf::Duration* to) {
  to->set_seconds(absl::IDivDuration(from, absl::Seconds(1), &from));
  to->set_nanos(static_cast<int32_t>(absl::ToInt64Nanoseconds(from)));
}

}  // namespace

std::string ToUtf8(const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size();) {
    const size_t length = SequenceLength(text, at);
    if (length == 0) {
      out += '?';
      ++at;
    } else {
      out.append(text, at, length);
      at += length;
    }
  }
  return out;
}

grpc::StatusCode ToGrpcCode(absl::StatusCode code) {
  const int number = static_cast<int>(code);
  if (number < 0 || number > kCodeMax) return grpc::StatusCode::UNKNOWN;
  return static_cast<grpc::StatusCode>(number);
}

absl::StatusCode ToAbslCode(int code) {
  if (code < 0 || code > kCodeMax) return absl::StatusCode::kUnknown;
  return static_cast<absl::StatusCode>(code);
}

grpc::Status ToGrpcStatus(const absl::Status& status, const ErrorDetails& details) {
  if (status.ok()) return grpc::Status::OK;
  const grpc::StatusCode code = ToGrpcCode(status.code());
  const std::string message = Clip(std::string(status.message()), wire::kErrorMessageBytesMax);
  if (details.reason.empty() && !details.retry_delay.has_value()) return {code, message};

  google::rpc::Status envelope;
  envelope.set_code(static_cast<int32_t>(code));
  envelope.set_message(message);
  if (!details.reason.empty()) {
    google::rpc::ErrorInfo info;
    FillErrorInfo(details, &info);
    envelope.add_details()->PackFrom(info);
  }
  if (details.retry_delay.has_value()) {
    google::rpc::RetryInfo retry;
    FillDuration(*details.retry_delay, retry.mutable_retry_delay());
    envelope.add_details()->PackFrom(retry);
  }
  return {code, message, envelope.SerializeAsString()};
}

DecodedStatus FromGrpcStatus(const grpc::Status& status) {
  DecodedStatus decoded;
  decoded.status = absl::Status(ToAbslCode(status.error_code()), status.error_message());
  google::rpc::Status envelope;
  if (status.ok() || !envelope.ParseFromString(status.error_details())) return decoded;
  google::rpc::ErrorInfo info;
  google::rpc::RetryInfo retry;
  for (const google::protobuf::Any& detail : envelope.details()) {
    if (detail.UnpackTo(&info) && info.domain() == kErrorDomain) {
      decoded.details.reason = info.reason();
      decoded.details.metadata = {info.metadata().begin(), info.metadata().end()};
    } else if (detail.UnpackTo(&retry)) {
      decoded.details.retry_delay = absl::Seconds(retry.retry_delay().seconds()) +
                                    absl::Nanoseconds(retry.retry_delay().nanos());
    }
  }
  return decoded;
}

}  // namespace kvtier
