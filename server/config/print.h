// The table of settings, and values, as texts for people and tools.
#pragma once

#include <string>

#include "server/config/setting_values.h"

namespace kvtier {

// A configuration file that says all of `values`, each with where it came from.
std::string PrintConfig(const SettingValues& values);
// A JSON schema (draft 2020-12) of the configuration file.
std::string PrintSchema();
// A table in Markdown.
std::string PrintReference();
// A line or two for each flag.
std::string PrintFlags();

}  // namespace kvtier
