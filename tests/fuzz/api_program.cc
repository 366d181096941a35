#include "tests/fuzz/api_program.h"

#include <stdlib.h>

#include <memory>

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "google/protobuf/descriptor.h"
#include "google/protobuf/text_format.h"
#include "tests/fuzz/message_mutator.h"

namespace kvtier::fuzz {
namespace {

constexpr int kChangesMax = 4;
constexpr uint64_t kCallers = 8;

// What makes sense at most times: what a program comes far with. SMALL stands for a layout.
constexpr absl::string_view kSensible[] = {
    R"(open_session { client_name: "a" })",
    R"(open_session { client_name: "b" } manner { caller: 1 })",
    R"(attach_cache { session_id: "session:0" cache: "kv" layout { SMALL } })",
    R"(attach_cache { session_id: "session:1" cache: "kv" layout { SMALL } })",
    R"(attach_cache { session_id: "session:0" cache: "kv2" layout { SMALL } retain { duration { seconds: 60 } } share { everybody: true } })",
    R"(attach_cache { session_id: "session:1" cache: "kv2" layout { SMALL } } manner { caller: 1 })",
    R"(detach_cache { session_id: "session:0" cache: "kv" })",
    R"(admit_request { session_id: "session:0" cache: "kv" request_id: "r" reserve_blocks: 3 })",
    R"(admit_request { session_id: "session:0" cache: "kv" request_id: "r1" })",
    R"(assign_blocks { session_id: "session:0" cache: "kv" request_id: "r" count: 2 })",
    R"(assign_blocks { session_id: "session:0" cache: "kv" request_id: "r1" count: 1 shared_block_ids: 0 })",
    R"(free_blocks { session_id: "session:0" cache: "kv" request_id: "r" block_ids: 0 })",
    R"(invalidate_blocks { session_id: "session:0" cache: "kv" block_ids: 0 })",
    R"(release_request { session_id: "session:0" cache: "kv" request_id: "r" })",
    R"(list_kept_blocks { session_id: "session:0" cache: "kv2" page_size: 2 })",
    R"(backup { session_id: "session:0" cache: "kv" inline { rows { request_id: "r" slot: 1 } rows { request_id: "r" slot: 2 source_hot_row: 1 } } })",
    R"(backup { session_id: "session:0" cache: "kv" step { num_rows: 2 } } manner { later: true })",
    R"(swap_in { session_id: "session:0" cache: "kv" inline { rows { request_id: "r" topk: 0 topk: 1 topk: 5 newest_slot: 3 } } })",
    R"(swap_in { session_id: "session:0" cache: "kv" step { num_rows: 2 } wait: true })",
    R"(swap_in { session_id: "session:0" cache: "kv" step { num_rows: 1 } } manner { later: true })",
    R"(replay_plan { session_id: "session:0" cache: "kv" num_rows: 1 })",
    R"(wait_ticket { session_id: "session:0" cache: "kv" ticket: 1 timeout { nanos: 1000 } } manner { later: true })",
    R"(run_steps { step_id: 1 swap_in { session_id: "session:0" cache: "kv" inline { rows { request_id: "r" topk: 0 } } } })",
    R"(run_steps { step_id: 2 backup { session_id: "session:0" cache: "kv" step { num_rows: 1 } } } manner { later: true })",
    R"(run_steps { step_id: 3 wait_ticket { session_id: "session:0" cache: "kv" ticket: 1 } })",
    R"(poke { segment: 5 words: 0 words: 1 words: -1 times: 64 })",
    R"(poke { segment: 4 words: 70000 words: -5 times: 900 })",
    R"(step_device { count: 1 })",
    R"(advance { milliseconds: 61000 })",
    R"(fail_device { number: 2 })",
    R"(get_stats { } manner { caller: 3 })",
    R"(list_requests { cache: "kv" page_size: 1 } manner { caller: 2 })",
    R"(backup { session_id: "session:0" cache: "kv" step { num_rows: 1 } wait: true })",
    R"(replay_plan { session_id: "session:0" cache: "kv" num_rows: 2 wait: true })",
    R"(swap_in { session_id: "session:0" cache: "kv" use_slots: true step { num_rows: 2 } wait: true } manner { later: true })",
    R"(run_steps { step_id: 4 replay_plan { session_id: "session:0" cache: "kv" num_rows: 1 wait: true } })",
    R"(run_steps { step_id: 5 swap_in { session_id: "session:0" cache: "kv" inline { rows { request_id: "r" topk: 1 } rows { } } } } manner { later: true })",
    R"(watch_stats { interval { seconds: 1 } } manner { caller: 2 cancel: true })",
    R"(drain { message: "maintenance" } manner { caller: 6 })",
    R"(evict_session { session_id: "session:0" } manner { caller: 3 })",
    R"(close_session { })",
};
constexpr absl::string_view kSmallLayout =
    "groups { layers { row_format: ROW_FORMAT_CONTIGUOUS row_bytes: 32 } "
    "layers { row_format: ROW_FORMAT_CONTIGUOUS row_bytes: 16 } top_k: 4 hot_size: 8 } "
    "block_size: 2 block_count: 8 max_requests: 2";

std::vector<Call> SensibleCalls() {
  std::vector<Call> calls;
  for (const absl::string_view text : kSensible) {
    std::string whole(text);
    if (const size_t at = whole.find("SMALL"); at != std::string::npos) {
      whole.replace(at, 5, std::string(kSmallLayout));
    }
    if (!google::protobuf::TextFormat::ParseFromString(whole, &calls.emplace_back())) abort();
  }
  return calls;
}

const MessageMutator& Mutator() {
  static const MessageMutator mutator({"session:0", "session:0", "session:1", "session:2", "kv",
                                       "kv", "kv2", "r", "r", "r1", "r2", "CPU-0", "", "bf16",
                                       "a.b", "../x", " ", std::string(129, 'x')});
  return mutator;
}

// Now and then by anybody.
void Insert(Program* program, const Call& call, Random& random) {
  Call* const added = program->add_calls();
  *added = call;
  if (Below(random, 4) == 0) {
    added->mutable_manner()->set_caller(static_cast<int32_t>(Below(random, kCallers)));
  }
  int at = static_cast<int>(Below(random, static_cast<uint64_t>(program->calls_size())));
  for (int i = program->calls_size() - 1; i > at; --i) {
    program->mutable_calls()->SwapElements(i, i - 1);
  }
}

// One thing somewhere.
void Change(Program* program, Random& random) {
  static const std::vector<Call> sensible = SensibleCalls();
  const uint64_t what = Below(random, 16);
  if (what < 4 || program->calls_size() == 0) {
    return Insert(program, sensible[Below(random, sensible.size())], random);
  }
  Call* const call = program->mutable_calls(
      static_cast<int>(Below(random, static_cast<uint64_t>(program->calls_size()))));
  switch (what) {
    case 4:
      return Mutator().Mutate(call->mutable_manner(), random);
    case 5:
      return call->mutable_manner()->set_caller(static_cast<int32_t>(Below(random, kCallers)));
    case 6:
      return call->mutable_manner()->set_weather(static_cast<int32_t>(Below(random, 64)));
    case 7:
      return call->clear_manner();
    default:
      return Mutator().Mutate(program, random);
  }
}

// As in Target.
std::string MutateProgram(absl::string_view input, Random& random) {
  Program program;
  if (!program.ParsePartialFromArray(input.data(), static_cast<int>(input.size()))) program.Clear();
  for (uint64_t i = 1 + Below(random, kChangesMax); i > 0; --i) Change(&program, random);
  while (program.calls_size() > kProgramCallsMax) {
    program.mutable_calls()->DeleteSubrange(
        static_cast<int>(Below(random, static_cast<uint64_t>(program.calls_size()))), 1);
  }
  return program.SerializeAsString();
}

std::vector<std::string> SplitProgram(absl::string_view input) {
  Program program;
  std::vector<std::string> calls;
  if (!ParseProgram(input, &program)) return calls;
  for (const Call& call : program.calls()) {
    Program one;
    *one.add_calls() = call;
    calls.push_back(one.SerializeAsString());
  }
  return calls;
}

absl::StatusOr<std::string> ReadProgram(absl::string_view file) {
  Program program;
  if (!google::protobuf::TextFormat::ParseFromString(std::string(file), &program)) {
    return absl::InvalidArgumentError("no program");
  }
  return program.SerializeAsString();
}

std::string DescribeProgram(absl::string_view input) {
  Program program;
  program.ParseFromArray(input.data(), static_cast<int>(input.size()));
  return program.DebugString();
}

}  // namespace

bool ParseProgram(absl::string_view input, Program* program) {
  if (!program->ParseFromArray(input.data(), static_cast<int>(input.size()))) return false;
  while (program->calls_size() > kProgramCallsMax) program->mutable_calls()->RemoveLast();
  return true;
}

void NameSessions(const std::vector<std::string>& ids, google::protobuf::Message* message) {
  if (ids.empty()) return;
  const auto* const reflection = message->GetReflection();
  std::vector<const google::protobuf::FieldDescriptor*> fields;
  reflection->ListFields(*message, &fields);
  for (const auto* const field : fields) {
    if (field->is_repeated()) continue;
    if (field->cpp_type() == google::protobuf::FieldDescriptor::CPPTYPE_MESSAGE) {
      NameSessions(ids, reflection->MutableMessage(message, field));
    } else if (field->name() == "session_id") {
      const std::string text = reflection->GetString(*message, field);
      absl::string_view number = text;
      uint32_t session = 0;
      if (!absl::ConsumePrefix(&number, "session:") || !absl::SimpleAtoi(number, &session))
        continue;
      reflection->SetString(message, field, ids[session % ids.size()]);
    }
  }
}

Target ProgramTarget(absl::Status (*play)(absl::string_view input, Played* played)) {
  return {.play = play,
          .mutate = MutateProgram,
          .split = SplitProgram,
          .read = ReadProgram,
          .describe = DescribeProgram};
}

}  // namespace kvtier::fuzz
