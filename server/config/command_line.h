// What was asked for when the daemon was started: an action, and values by flags over environment
// over file over defaults.
#pragma once

#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/config/setting_values.h"

namespace kvtier {

enum class CommandAction {
  kServe,
  kValidate,
  kPrintConfig,
  kPrintSchema,
  kPrintReference,
  kHelp,
  kVersion,
};

struct Command {
  CommandAction action = CommandAction::kServe;
  SettingValues values;
  std::string config_path;  // "": no file
  // Variables that begin with KVTIERD_ and are none of ours, with advice. No error: Kubernetes sets
  // KVTIERD_SERVICE_HOST and others where a service is named kvtierd.
  std::vector<std::string> unknown_variables;
};

// Where a command comes from; a reload reads the same again.
struct CommandSources {
  std::vector<std::string> arguments;                            // without the program's name
  std::vector<std::pair<std::string, std::string>> environment;  // name and value
  std::function<absl::StatusOr<std::string>(absl::string_view path)> read_file;
};

// "--name=value", "--name value", and for switches "--name" and "--noname". A variable that is
// empty counts as not set. With kHelp and kVersion nothing else is looked at. Errors:
// INVALID_ARGUMENT, saying where the mistake is; those of read_file.
absl::StatusOr<Command> ReadCommand(const CommandSources& sources);

}  // namespace kvtier
