// Programs of calls (program.proto) as inputs of a fuzz target: how they are changed, taken apart
// and read.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
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

// As in Target.
std::string MutateProgram(absl::string_view input, Random& random);
std::vector<std::string> SplitProgram(absl::string_view input);
absl::StatusOr<std::string> ReadProgram(absl::string_view file);
std::string DescribeProgram(absl::string_view input);

}  // namespace kvtier::fuzz
