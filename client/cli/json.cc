#include "client/cli/json.h"

#include "google/protobuf/util/json_util.h"

namespace kvtier::cli {

std::string ToJson(const google::protobuf::Message& message, bool lines) {
  google::protobuf::util::JsonPrintOptions options;
  options.add_whitespace = lines;
  options.always_print_primitive_fields = true;
  options.preserve_proto_field_names = true;
  std::string text;
  // Fails for times and durations of more than 10,000 years, which no daemon means.
  if (!google::protobuf::util::MessageToJsonString(message, &text, options).ok()) {
    return R"({"error": "the answer has a time that JSON cannot say"})";
  }
  return text;
}

}  // namespace kvtier::cli
