// The programs of the API's fuzzer by one client over a real socket: what gRPC makes of the calls,
// and the server around the services.
#include "tests/fuzz/api_program.h"
#include "tests/fuzz/wire_world.h"

namespace kvtier::fuzz {
namespace {

absl::Status Play(absl::string_view input, Played* played) {
  static WireWorld world;
  Program program;
  if (!ParseProgram(input, &program)) return absl::OkStatus();
  return world.Play(program, played);
}

}  // namespace

Target GetTarget() { return ProgramTarget(Play); }

}  // namespace kvtier::fuzz
