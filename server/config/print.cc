#include "server/config/print.h"

#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/str_split.h"
#include "server/config/config_file.h"
#include "server/config/setting.h"

namespace kvtier {
namespace {

using Kind = SettingKind;

// Numbers and switches are better not quoted: they are numbers and switches in YAML, too.
bool IsBare(Kind kind) {
  return kind == Kind::kSwitch || kind == Kind::kNumber || kind == Kind::kNumbers;
}

std::string PrintValue(Kind kind, const std::vector<std::string>& texts) {
  std::vector<std::string> printed;
  for (const std::string& text : texts) printed.push_back(IsBare(kind) ? text : QuoteValue(text));
  if (!IsList(kind)) return printed.front();
  return absl::StrCat("[", absl::StrJoin(printed, ", "), "]");
}

std::vector<std::string> DefaultTexts(const Setting& setting) {
  return SettingValues().Get(setting.name).texts;
}

// QuoteValue's escapes are JSON's as well.
std::string Json(absl::string_view text) { return QuoteValue(text); }

std::string Integer(const Setting& setting) {
  return absl::StrCat(R"("type": "integer", "minimum": )", setting.minimum, R"(, "maximum": )",
                      setting.maximum);
}

std::string SchemaOf(const Setting& setting) {
  switch (setting.kind) {
    case Kind::kText:
      return R"("type": "string")";
    case Kind::kTexts:
      return R"("type": "array", "items": {"type": "string", "minLength": 1})";
    case Kind::kSwitch:
      return R"("type": "boolean")";
    case Kind::kNumber:
      return Integer(setting);
    case Kind::kNumbers:
      return absl::StrCat(R"("type": "array", "items": {)", Integer(setting), "}");
    case Kind::kOctal:
      // Quoted, since YAML reads 0660 as the number 432.
      return R"("type": "string", "pattern": "^0?[0-7]{1,3}$")";
    case Kind::kBytes:
      return absl::StrCat(R"("type": ["string", "integer"], "minimum": )", setting.minimum,
                          R"(, "pattern": "^[0-9]+([.][0-9]+)?([KMGT]iB)?$")");
    case Kind::kDuration:
      return R"("type": "string", "pattern": "^([0-9]+([.][0-9]+)?(ns|us|ms|s|m|h))+$|^0$")";
    case Kind::kChoice: {
      std::vector<std::string> choices;
      for (const absl::string_view choice : absl::StrSplit(setting.choices, '|')) {
        choices.push_back(Json(choice));
      }
      return absl::StrCat(R"("type": "string", "enum": [)", absl::StrJoin(choices, ", "), "]");
    }
  }
  return "";
}

}  // namespace

std::string PrintConfig(const SettingValues& values) {
  std::string text;
  for (const Setting& setting : Settings()) {
    const SettingValues::Value& value = values.Get(setting.name);
    absl::StrAppend(&text, setting.name, ": ", PrintValue(setting.kind, value.texts), "  # ",
                    value.origin, "\n");
  }
  return text;
}

std::string PrintSchema() {
  std::vector<std::string> properties;
  for (const Setting& setting : Settings()) {
    properties.push_back(
        absl::StrCat("    ", Json(setting.name), ": {\n      \"description\": ", Json(setting.help),
                     ",\n      \"default\": ", PrintValue(setting.kind, DefaultTexts(setting)),
                     ",\n      ", SchemaOf(setting), "\n    }"));
  }
  return absl::StrCat(
      "{\n"
      "  \"$schema\": \"https://json-schema.org/draft/2020-12/schema\",\n"
      "  \"title\": \"Configuration file of kvtierd\",\n"
      "  \"type\": \"object\",\n"
      "  \"additionalProperties\": false,\n"
      "  \"properties\": {\n",
      absl::StrJoin(properties, ",\n"), "\n  }\n}\n");
}

std::string PrintReference() {
  std::string text =
      "| name | value | default | SIGHUP | what |\n"
      "| --- | --- | --- | --- | --- |\n";
  for (const Setting& setting : Settings()) {
    const std::vector<std::string> texts = DefaultTexts(setting);
    const std::string shown = IsList(setting.kind)
                                  ? (texts.empty() ? "[]" : PrintValue(setting.kind, texts))
                                  : (texts.front().empty() ? "\"\"" : texts.front());
    absl::StrAppend(&text, "| `", setting.name, "` | ", RangeOf(setting), " | `", shown, "` | ",
                    setting.reloadable ? "applies" : "", " | ",
                    absl::StrReplaceAll(setting.help, {{"<", "\\<"}}), " |\n");
  }
  return text;
}

std::string PrintFlags() {
  std::string text;
  for (const Setting& setting : Settings()) {
    const std::vector<std::string> texts = DefaultTexts(setting);
    absl::StrAppend(
        &text, "  --", setting.name, " (", RangeOf(setting),
        "; default: ", texts.empty() || texts.front().empty() ? "none" : absl::StrJoin(texts, ","),
        setting.reloadable ? "; applied on SIGHUP" : "", ")\n      ", setting.help, "\n");
  }
  return text;
}

}  // namespace kvtier
