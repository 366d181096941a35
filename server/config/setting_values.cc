#include "server/config/setting_values.h"

#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "server/config/config_file.h"
#include "server/config/setting.h"
#include "server/core/status_macros.h"

namespace kvtier {
namespace {

std::vector<std::string> TextsOf(const Setting& setting, absl::string_view text) {
  if (!IsList(setting.kind)) return {std::string(text)};
  std::vector<std::string> texts;
  for (const absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    texts.emplace_back(absl::StripAsciiWhitespace(item));
  }
  return texts;
}

absl::Status Unknown(absl::string_view name, absl::string_view origin) {
  const std::string nearest = NearestSetting(name);
  return absl::InvalidArgumentError(
      absl::StrCat(origin, ": there is no setting '", name, "'",
                   nearest.empty() ? "" : absl::StrCat("; did you mean '", nearest, "'?")));
}

absl::Status Check(const Setting& setting, const std::vector<std::string>& texts,
                   absl::string_view origin) {
  const absl::Status status = CheckTexts(setting, texts);
  if (status.ok()) return status;
  return absl::InvalidArgumentError(absl::StrCat(origin, ": ", status.message()));
}

}  // namespace

SettingValues::SettingValues() {
  for (const Setting& setting : Settings()) {
    values_[setting.name] = {.texts = TextsOf(setting, setting.default_text), .origin = "default"};
  }
}

absl::Status SettingValues::SetFromFile(absl::string_view path, absl::string_view content) {
  KVTIER_ASSIGN_OR_RETURN(const std::vector<ConfigEntry> entries, ParseConfigFile(path, content));
  for (const ConfigEntry& entry : entries) {
    const std::string origin = absl::StrCat(path, ":", entry.line);
    const Setting* setting = FindSetting(entry.name);
    if (setting == nullptr) return Unknown(entry.name, origin);
    if (entry.list != IsList(setting->kind)) {
      return absl::InvalidArgumentError(
          absl::StrCat(origin, ": ", entry.name, ": ", RangeOf(*setting), " is expected",
                       IsList(setting->kind) ? ", written [a, b]" : ", and this is a list"));
    }
    KVTIER_RETURN_IF_ERROR(Check(*setting, entry.texts, origin));
    values_[entry.name] = {.texts = entry.texts, .origin = origin};
  }
  return absl::OkStatus();
}

absl::Status SettingValues::SetFromText(absl::string_view name, absl::string_view text,
                                        absl::string_view origin) {
  const Setting* setting = FindSetting(name);
  if (setting == nullptr) return Unknown(name, origin);
  std::vector<std::string> texts = TextsOf(*setting, text);
  KVTIER_RETURN_IF_ERROR(Check(*setting, texts, origin));
  values_[name] = {.texts = std::move(texts), .origin = std::string(origin)};
  return absl::OkStatus();
}

const SettingValues::Value& SettingValues::Get(absl::string_view name) const {
  return values_.find(name)->second;
}

SettingChanges ChangesOf(const SettingValues& from, const SettingValues& to) {
  SettingChanges changes;
  for (const Setting& setting : Settings()) {
    if (from.Get(setting.name).texts == to.Get(setting.name).texts) continue;
    (setting.reloadable ? changes.reloadable : changes.needs_restart).emplace_back(setting.name);
  }
  return changes;
}

SettingValues Reloaded(const SettingValues& running, const SettingValues& wanted) {
  SettingValues result = running;
  for (const Setting& setting : Settings()) {
    if (setting.reloadable) result.Set(setting.name, wanted.Get(setting.name));
  }
  return result;
}

}  // namespace kvtier
