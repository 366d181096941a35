// Every RPC of both services, by several users, in any order and with any field wrong: the daemon
// answers with a code and a reason that are the caller's, changes nothing of anybody else's, and
// afterwards all is given back.
#include "google/protobuf/stubs/logging.h"
#include "tests/fuzz/api_program.h"
#include "tests/fuzz/direct_world.h"

namespace kvtier::fuzz {
namespace {

absl::Status Play(absl::string_view input, Played* played) {
  // Says of each text that is none what the answer says, too.
  static auto* const loud = google::protobuf::SetLogHandler(nullptr);
  (void)loud;
  Program program;
  if (!ParseProgram(input, &program)) return absl::OkStatus();
  return DirectWorld().Play(program, played);
}

}  // namespace

Target GetTarget() { return ProgramTarget(Play); }

}  // namespace kvtier::fuzz
