// Every RPC of both services, in any order and with any field wrong: the daemon answers with a code
// and a reason that are the caller's, and afterwards all is given back.
#include <string>
#include <vector>

#include "google/protobuf/text_format.h"
#include "tests/fuzz/api_world.h"
#include "tests/fuzz/message_mutator.h"
#include "tests/fuzz/program.pb.h"
#include "tests/fuzz/target.h"

namespace kvtier::fuzz {
namespace {

constexpr int kCallsMax = 24;
constexpr int kChangesMax = 4;

const MessageMutator& Mutator() {
  static const MessageMutator mutator({"session:0", "session:0", "session:1", "session:2", "kv",
                                       "kv", "kv2", "r", "r", "r1", "r2", "CPU-0", "", "bf16",
                                       "a.b", "../x", " ", std::string(129, 'x')});
  return mutator;
}

absl::Status Play(absl::string_view input, Played* played) {
  static ApiWorld world;
  Program program;
  // Bytes that are no program are nobody's call.
  if (!program.ParseFromArray(input.data(), static_cast<int>(input.size())))
    return absl::OkStatus();
  while (program.calls_size() > kCallsMax) program.mutable_calls()->RemoveLast();
  return world.Play(program, played);
}

std::string Mutate(absl::string_view input, Random& random) {
  Program program;
  if (!program.ParsePartialFromArray(input.data(), static_cast<int>(input.size()))) program.Clear();
  for (uint64_t i = 1 + Below(random, kChangesMax); i > 0; --i) {
    Mutator().Mutate(&program, random);
  }
  while (program.calls_size() > kCallsMax) program.mutable_calls()->RemoveLast();
  return program.SerializeAsString();
}

std::vector<std::string> Calls(absl::string_view input) {
  Program program;
  std::vector<std::string> calls;
  if (!program.ParseFromArray(input.data(), static_cast<int>(input.size()))) return calls;
  for (const Call& call : program.calls()) {
    Program one;
    *one.add_calls() = call;
    calls.push_back(one.SerializeAsString());
  }
  return calls;
}

absl::StatusOr<std::string> ReadText(absl::string_view file) {
  Program program;
  if (!google::protobuf::TextFormat::ParseFromString(std::string(file), &program)) {
    return absl::InvalidArgumentError("no program");
  }
  return program.SerializeAsString();
}

std::string Describe(absl::string_view input) {
  Program program;
  program.ParseFromArray(input.data(), static_cast<int>(input.size()));
  return program.DebugString();
}

}  // namespace

Target GetTarget() {
  return {.play = Play, .mutate = Mutate, .split = Calls, .read = ReadText, .describe = Describe};
}

}  // namespace kvtier::fuzz
