// A value for every setting, and where each came from.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvtier {

class SettingValues {
 public:
  struct Value {
    std::vector<std::string> texts;  // one, or those of a list
    std::string origin;              // "default", "/etc/x.yaml:3", "KVTIERD_TCP", "--tcp"
  };

  // All at their defaults.
  SettingValues();

  // Each takes the place of what was there. Errors: INVALID_ARGUMENT, saying where, with the
  // nearest known name if there is none such.

  // What ParseConfigFile reads.
  absl::Status SetFromFile(absl::string_view path, absl::string_view content);
  // Items of a list with commas between. `origin` is for errors and Value::origin.
  absl::Status SetFromText(absl::string_view name, absl::string_view text,
                           absl::string_view origin);

  // `name` is that of a setting; `value` one that another SettingValues has for it.
  const Value& Get(absl::string_view name) const;
  void Set(absl::string_view name, Value value) { values_[name] = std::move(value); }

 private:
  absl::btree_map<std::string, Value> values_;  // by name; every setting
};

// Names of settings whose texts are not the same.
struct SettingChanges {
  std::vector<std::string> reloadable;
  std::vector<std::string> needs_restart;
};
SettingChanges ChangesOf(const SettingValues& from, const SettingValues& to);

// `running` with the reloadable values of `wanted`: what holds after a reload.
SettingValues Reloaded(const SettingValues& running, const SettingValues& wanted);

}  // namespace kvtier
