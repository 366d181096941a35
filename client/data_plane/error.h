// What went wrong, in the standard library's terms: the words of absl::Status and ErrorInfo, which
// this library does without. Internal to client/.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace kvtier::data_plane {

// google.rpc.Code.
enum class Code : int32_t {
  kOk = 0,
  kInvalidArgument = 3,
  kResourceExhausted = 8,
  kFailedPrecondition = 9,
  kOutOfRange = 11,
  kUnimplemented = 12,
  kInternal = 13,
};

struct [[nodiscard]] Error {
  Code code = Code::kOk;
  std::string reason;  // of errors.proto
  std::string message;
  std::vector<std::pair<std::string, std::string>> metadata;

  bool ok() const { return code == Code::kOk; }
};

// INVALID_ARGUMENT / FIELD_INVALID about an argument of a call.
Error ArgumentError(const std::string& field, const std::string& value, const std::string& limit);

// INTERNAL / INTERNAL: the daemon gave something that it must not.
Error MalformedAnswer(const std::string& what);

}  // namespace kvtier::data_plane
