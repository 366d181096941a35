// Answers of the daemon as JSON, zeros and all.
#pragma once

#include <string>

#include "google/protobuf/message.h"

namespace kvtier::cli {

// Names as in the .proto files; what is at its default is there, what is absent is not. `lines`:
// indented, else all in one line.
std::string ToJson(const google::protobuf::Message& message, bool lines);

}  // namespace kvtier::cli
