// Configuration files: whatever is in one, it is taken or refused with its place, and what is taken
// means the same when it is printed and read again.
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/config/command_line.h"
#include "server/config/config_file.h"
#include "server/config/daemon_config.h"
#include "server/config/print.h"
#include "server/config/setting_values.h"
#include "tests/fuzz/driver.h"
#include "tests/fuzz/target.h"

namespace kvtier::fuzz {
namespace {

absl::StatusOr<Command> Read(absl::string_view content) {
  CommandSources sources;
  sources.arguments = {"--config=f"};
  sources.read_file = [content](absl::string_view) { return std::string(content); };
  return ReadCommand(sources);
}

absl::Status CheckQuoting(absl::string_view content) {
  const auto entries = ParseConfigFile("f", content);
  if (!entries.ok()) {
    return absl::StartsWith(entries.status().message(), "f:")
               ? absl::OkStatus()
               : absl::InternalError(absl::StrCat("says no line: ", entries.status().message()));
  }
  for (const ConfigEntry& entry : *entries) {
    for (const std::string& text : entry.texts) {
      const std::string quoted = absl::StrCat("a: ", QuoteValue(text), "\n");
      const auto again = ParseConfigFile("f", quoted);
      if (!again.ok() || again->size() != 1 || again->front().texts != std::vector{text}) {
        return absl::InternalError(absl::StrCat("a value changes when it is quoted: ", quoted));
      }
    }
  }
  return absl::OkStatus();
}

absl::Status Play(absl::string_view content, Played* played) {
  ++played->operations;
  const absl::Status quoting = CheckQuoting(content);
  if (!quoting.ok()) return quoting;
  const absl::StatusOr<Command> command = Read(content);
  if (!command.ok()) {
    ++played->errors;
    if (absl::IsInvalidArgument(command.status())) return absl::OkStatus();
    return absl::InternalError(command.status().ToString());
  }
  (void)DaemonConfigOf(command->values);
  const absl::StatusOr<Command> again = Read(PrintConfig(command->values));
  if (!again.ok()) {
    return absl::InternalError(
        absl::StrCat("what is printed is refused: ", again.status().message()));
  }
  const SettingChanges changes = ChangesOf(command->values, again->values);
  if (changes.reloadable.empty() && changes.needs_restart.empty()) return absl::OkStatus();
  return absl::InternalError("what is printed means something else");
}

std::string Mutate(absl::string_view input, Random& random) {
  static const std::vector<std::string> dictionary = {"pool_bytes",
                                                      "socket",
                                                      "allowed_uids",
                                                      "tcp",
                                                      ": ",
                                                      "\n",
                                                      "- ",
                                                      "  - 1\n",
                                                      "[",
                                                      "]",
                                                      ", ",
                                                      "\"",
                                                      "'",
                                                      "#",
                                                      "\\n",
                                                      "\\x41",
                                                      "|",
                                                      "&a",
                                                      "*a",
                                                      "!!str",
                                                      "{a: b}",
                                                      "---\n",
                                                      "0660",
                                                      "8GiB",
                                                      "5s",
                                                      "true",
                                                      "-1",
                                                      "127.0.0.1:7400",
                                                      "\t",
                                                      "\r\n",
                                                      std::string(1, '\0'),
                                                      "\xff"};
  return MutateBytes(input, random, dictionary);
}

std::vector<std::string> Lines(absl::string_view input) {
  std::vector<std::string> lines = absl::StrSplit(input, '\n');
  for (size_t i = 0; i + 1 < lines.size(); ++i) lines[i] += '\n';
  return lines;
}

}  // namespace

Target GetTarget() { return {.play = Play, .mutate = Mutate, .split = Lines}; }

}  // namespace kvtier::fuzz
