#include "server/config/command_line.h"

#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "server/config/setting.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

constexpr absl::string_view kVariablePrefix = "KVTIERD_";
constexpr absl::string_view kConfig = "config";

struct ActionName {
  absl::string_view name;
  CommandAction action;
};
constexpr ActionName kActions[] = {
    {"validate", CommandAction::kValidate},
    {"print_config", CommandAction::kPrintConfig},
    {"print_schema", CommandAction::kPrintSchema},
    {"print_reference", CommandAction::kPrintReference},
    {"help", CommandAction::kHelp},
    {"version", CommandAction::kVersion},
};

std::optional<CommandAction> ActionOf(absl::string_view name) {
  for (const ActionName& each : kActions) {
    if (each.name == name) return each.action;
  }
  return std::nullopt;
}

absl::Status UnknownFlag(absl::string_view name) {
  std::vector<absl::string_view> known = {kConfig};
  for (const ActionName& each : kActions) known.push_back(each.name);
  for (const Setting& setting : Settings()) known.push_back(setting.name);
  const std::string nearest = NearestOf(name, known);
  return absl::InvalidArgumentError(absl::StrCat(
      "there is no flag --", name, nearest.empty() ? "; --help lists them" : "; did you mean --",
      nearest, nearest.empty() ? "" : "?"));
}

struct Flag {
  std::string name, value;
};

struct Arguments {
  CommandAction action = CommandAction::kServe;
  std::optional<std::string> config_path;
  std::vector<Flag> flags;
};

// One flag off the front of the rest.
absl::Status TakeFlag(const std::vector<std::string>& arguments, size_t* next, Arguments* to) {
  absl::string_view text = arguments[(*next)++];
  if (!absl::ConsumePrefix(&text, "--") || text.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("'", arguments[*next - 1], "': flags look like --name=value"));
  }
  const size_t equals = text.find('=');
  const absl::string_view name = text.substr(0, equals);
  std::optional<std::string> value;
  if (equals != absl::string_view::npos) value = std::string(text.substr(equals + 1));

  if (const std::optional<CommandAction> action = ActionOf(name); action.has_value()) {
    if (value.has_value()) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " takes no value"));
    }
    to->action = *action;
    return absl::OkStatus();
  }
  const Setting* setting = FindSetting(name);
  if (setting != nullptr && setting->kind == SettingKind::kSwitch && !value.has_value()) {
    value = "true";
  }
  if (setting == nullptr && absl::StartsWith(name, "no") && !value.has_value()) {
    const Setting* negated = FindSetting(name.substr(2));
    if (negated != nullptr && negated->kind == SettingKind::kSwitch) {
      to->flags.push_back({std::string(negated->name), "false"});
      return absl::OkStatus();
    }
  }
  if (setting == nullptr && name != kConfig) return UnknownFlag(name);
  if (!value.has_value()) {
    if (*next >= arguments.size()) {
      return absl::InvalidArgumentError(absl::StrCat("--", name, " needs a value"));
    }
    value = arguments[(*next)++];
  }
  if (name == kConfig) {
    to->config_path = *std::move(value);
  } else {
    to->flags.push_back({std::string(name), *std::move(value)});
  }
  return absl::OkStatus();
}

// The name of the setting that a variable is about.
std::optional<std::string> NameOfVariable(absl::string_view variable) {
  if (!absl::ConsumePrefix(&variable, kVariablePrefix)) return std::nullopt;
  return absl::AsciiStrToLower(variable);
}

absl::Status SetFromEnvironment(const CommandSources& sources, Command* command) {
  for (const auto& [variable, value] : sources.environment) {
    const std::optional<std::string> name = NameOfVariable(variable);
    if (!name.has_value() || *name == kConfig) continue;
    const Setting* setting = FindSetting(*name);
    if (setting == nullptr || VariableOf(*name) != variable) {
      const std::string nearest = NearestSetting(*name);
      command->unknown_variables.push_back(
          absl::StrCat(variable, nearest.empty() ? "" : " (did you mean ",
                       nearest.empty() ? "" : VariableOf(nearest), nearest.empty() ? "" : "?)"));
      continue;
    }
    if (value.empty()) continue;
    KVTIER_RETURN_IF_ERROR(command->values.SetFromText(*name, value, variable));
  }
  return absl::OkStatus();
}

std::string ConfigPathOf(const CommandSources& sources, const Arguments& arguments) {
  if (arguments.config_path.has_value()) return *arguments.config_path;
  for (const auto& [variable, value] : sources.environment) {
    if (NameOfVariable(variable) == kConfig) return value;
  }
  return "";
}

}  // namespace

absl::StatusOr<Command> ReadCommand(const CommandSources& sources) {
  Arguments arguments;
  for (size_t next = 0; next < sources.arguments.size();) {
    KVTIER_RETURN_IF_ERROR(TakeFlag(sources.arguments, &next, &arguments));
  }
  Command command;
  command.action = arguments.action;
  if (command.action == CommandAction::kHelp || command.action == CommandAction::kVersion) {
    return command;
  }
  command.config_path = ConfigPathOf(sources, arguments);
  if (!command.config_path.empty()) {
    KVTIER_ASSIGN_OR_RETURN(const std::string content, sources.read_file(command.config_path));
    KVTIER_RETURN_IF_ERROR(command.values.SetFromFile(command.config_path, content));
  }
  KVTIER_RETURN_IF_ERROR(SetFromEnvironment(sources, &command));
  for (const Flag& flag : arguments.flags) {
    KVTIER_RETURN_IF_ERROR(
        command.values.SetFromText(flag.name, flag.value, absl::StrCat("--", flag.name)));
  }
  return command;
}

}  // namespace kvtier
