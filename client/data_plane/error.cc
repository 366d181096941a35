#include "client/data_plane/error.h"

namespace kvtier::data_plane {

Error ArgumentError(const std::string& field, const std::string& value, const std::string& limit) {
  return {.code = Code::kInvalidArgument,
          .reason = "FIELD_INVALID",
          .message = field + " is " + value + "; it must be " + limit,
          .metadata = {{"field", field}, {"value", value}, {"limit", limit}}};
}

Error MalformedAnswer(const std::string& what) {
  return {.code = Code::kInternal,
          .reason = "INTERNAL",
          .message = "the daemon's answer makes no sense: " + what,
          .metadata = {}};
}

}  // namespace kvtier::data_plane
