// kvtierctl: whatever is on its command line, and whatever a daemon answers. JSON means what the
// message did, no line of the live view is longer than its screen, and nothing falls over.
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "client/cli/arguments.h"
#include "client/cli/json.h"
#include "client/cli/top.h"
#include "client/cli/views.h"
#include "google/protobuf/util/json_util.h"
#include "proto/kvtier/v1/admin.pb.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/message_mutator.h"
#include "tests/fuzz/target.h"

namespace kvtier::fuzz {
namespace {

using google::protobuf::Message;

// What an input is of, by its first byte; 0: a command line, words that zeros end.
std::unique_ptr<Message> MessageOf(uint8_t kind) {
  switch (kind % 6) {
    case 1:
      return std::make_unique<v1::GetStatsResponse>();
    case 2:
      return std::make_unique<v1::ListCachesResponse>();
    case 3:
      return std::make_unique<v1::ListSessionsResponse>();
    case 4:
      return std::make_unique<v1::ListRequestsResponse>();
    case 5:
      return std::make_unique<v1::GetNodeInfoResponse>();
    default:
      return nullptr;
  }
}

absl::Status PlayArguments(absl::string_view words, Played* played) {
  const std::vector<std::string> arguments = absl::StrSplit(words, '\0');
  const absl::StatusOr<cli::Arguments> parsed = cli::ParseArguments(arguments, "");
  if (parsed.ok()) {
    return parsed->command.empty() ? absl::InternalError("taken, and no command")
                                   : absl::OkStatus();
  }
  ++played->errors;
  return absl::IsInvalidArgument(parsed.status()) ? absl::OkStatus()
                                                  : absl::InternalError(parsed.status().ToString());
}

absl::Status CheckFrame(const v1::GetStatsResponse& stats) {
  static cli::Top top("1.2.3");
  const cli::Screen screen = {.columns = 60, .rows = 20};
  const std::vector<std::string> lines = absl::StrSplit(top.Frame(stats, screen), '\n');
  if (lines.size() > static_cast<size_t>(screen.rows) + 1) {
    return absl::InternalError("more lines than the screen has");
  }
  return absl::OkStatus();
}

absl::Status CheckJson(const Message& message) {
  const std::string json = cli::ToJson(message, true);
  if (absl::StartsWith(json, R"({"error")")) return absl::OkStatus();
  const std::unique_ptr<Message> again(message.New());
  if (!google::protobuf::util::JsonStringToMessage(json, again.get()).ok()) {
    return absl::InternalError(absl::StrCat("no JSON of such a message: ", json));
  }
  // Times that are written otherwise than usual come back as usual: so the texts are compared.
  return cli::ToJson(*again, true) == json
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat("JSON means something else: ", json));
}

absl::Status Play(absl::string_view input, Played* played) {
  ++played->operations;
  if (input.empty()) return absl::OkStatus();
  const std::unique_ptr<Message> message = MessageOf(static_cast<uint8_t>(input[0]));
  input.remove_prefix(1);
  if (message == nullptr) return PlayArguments(input, played);
  if (!message->ParseFromArray(input.data(), static_cast<int>(input.size()))) {
    ++played->errors;
    return absl::OkStatus();
  }
  const absl::Time now = absl::FromUnixSeconds(1'000'000'000);
  absl::Status checked;
  if (const auto* const stats = dynamic_cast<v1::GetStatsResponse*>(message.get())) {
    (void)cli::StatsView(*stats, true);
    (void)cli::StatsView(*stats, false);
    checked = CheckFrame(*stats);
  } else if (const auto* const caches = dynamic_cast<v1::ListCachesResponse*>(message.get())) {
    (void)cli::CachesView(*caches, now);
  } else if (const auto* const sessions = dynamic_cast<v1::ListSessionsResponse*>(message.get())) {
    (void)cli::SessionsView(*sessions, now);
  } else if (const auto* const requests = dynamic_cast<v1::ListRequestsResponse*>(message.get())) {
    (void)cli::RequestsView({requests->requests().begin(), requests->requests().end()});
  } else if (const auto* const info = dynamic_cast<v1::GetNodeInfoResponse*>(message.get())) {
    (void)cli::InfoView(*info);
  }
  return checked.ok() ? CheckJson(*message) : checked;
}

std::string Mutate(absl::string_view input, Random& random) {
  static const MessageMutator mutator(
      {"kv", "CPU-0", "a\nb", "\x1b[31m", "", std::string(200, 'x')});
  static const std::vector<std::string> words = {"--socket=",  "--address=",  "--output=",
                                                 "json",       "table",       "--timeout=",
                                                 "5s",         "--interval=", "--iterations=",
                                                 "--message=", "--wait=",     "stats",
                                                 "top",        "caches",      "requests",
                                                 "evict",      "drain",       "doctor",
                                                 "completion", "bash",        "--",
                                                 "-",          "=",           std::string(1, '\0'),
                                                 "-1s",        "inf"};
  const auto kind = static_cast<uint8_t>(
      Below(random, 8) == 0 || input.empty() ? Below(random, 6) : static_cast<uint8_t>(input[0]));
  const absl::string_view rest = input.empty() ? input : input.substr(1);
  const std::unique_ptr<Message> message = MessageOf(kind);
  std::string made(1, static_cast<char>(kind));
  if (message == nullptr) return made + MutateBytes(rest, random, words);
  if (!message->ParseFromArray(rest.data(), static_cast<int>(rest.size())) || rest.empty()) {
    message->Clear();
    mutator.Draw(message.get(), random);
  }
  mutator.Mutate(message.get(), random);
  return made + message->SerializeAsString();
}

}  // namespace

Target GetTarget() { return {.play = Play, .mutate = Mutate}; }

}  // namespace kvtier::fuzz
