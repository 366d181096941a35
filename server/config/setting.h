// What can be configured: one table, from which the file's keys, the flags, the environment
// variables, --help, the JSON schema and the reference in docs/ are made.
//
// A setting `pool_bytes` is the key pool_bytes of the file, the flag --pool_bytes and the variable
// KVTIERD_POOL_BYTES. To add one: a row in setting.cc, a member in daemon_config.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace kvtier {

enum class SettingKind {
  kText,
  kTexts,     // a list
  kSwitch,    // true or false
  kNumber,    // minimum..maximum
  kNumbers,   // a list of those
  kOctal,     // 0..0777
  kBytes,     // as ParseByteSize; minimum..maximum
  kDuration,  // "5s", "1m30s", minimum..maximum in seconds
  kChoice,    // one of `choices`
};

struct Setting {
  absl::string_view name;
  SettingKind kind = SettingKind::kText;
  absl::string_view default_text;  // items of a list with commas between
  int64_t minimum = 0;
  int64_t maximum = 0;
  absl::string_view choices;  // "auto|cpu|cuda"
  bool reloadable = false;    // SIGHUP applies a change
  absl::string_view help;
};

// In the order in which people want to read them.
absl::Span<const Setting> Settings();

// Null where there is none.
const Setting* FindSetting(absl::string_view name);

// The known name that `name` was probably meant to be, or "".
std::string NearestOf(absl::string_view name, const std::vector<absl::string_view>& known);
std::string NearestSetting(absl::string_view name);

bool IsList(SettingKind kind);

// Whether `texts` are a value of `setting`: exactly one text, or any number for a list. Errors:
// INVALID_ARGUMENT, saying what it would have to be.
absl::Status CheckTexts(const Setting& setting, const std::vector<std::string>& texts);

// What its values look like, for people: "1..256", "auto, cpu or cuda", "true or false".
std::string RangeOf(const Setting& setting);

// "KVTIERD_POOL_BYTES"
std::string VariableOf(absl::string_view name);

}  // namespace kvtier
