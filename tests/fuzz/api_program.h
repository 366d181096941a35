// Programs of calls (program.proto) as inputs of a fuzz target: how they are changed, taken apart
// and read.
#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "google/protobuf/message.h"
#include "tests/fuzz/program.pb.h"
#include "tests/fuzz/target.h"

namespace kvtier::fuzz {

// More calls than that are left out.
inline constexpr int kProgramCallsMax = 64;

// False: bytes that are no program, and nobody's call.
bool ParseProgram(absl::string_view input, Program* program);

// Puts the ids of sessions, which are known only when it is played, for "session:N".
void NameSessions(const std::vector<std::string>& ids, google::protobuf::Message* message);

// A target whose inputs are programs; `play` as in Target.
Target ProgramTarget(absl::Status (*play)(absl::string_view input, Played* played));

}  // namespace kvtier::fuzz
