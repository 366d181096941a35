// The configuration file: names and values, in a small part of YAML.
//
//   # Comments, blank lines.
//   pool_bytes: 8GiB
//   socket_mode: "0660"              # plain, 'single' or "double" quoted
//   tcp: ["127.0.0.1:7400"]          # a list, or
//   allowed_uids:
//     - 1000
//     - 1001
//
// Whatever else YAML has (nested mappings, anchors, tags, several lines) is refused with its line,
// rather than half understood. A value is a text, as it is written: 0660 stays "0660".
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvtier {

struct ConfigEntry {
  std::string name;
  std::vector<std::string> texts;
  bool list = false;
  int line = 0;  // from 1
};

// Entries in the file's order; no name twice. `path` is for errors alone. Errors:
// INVALID_ARGUMENT, "path:line: ...".
absl::StatusOr<std::vector<ConfigEntry>> ParseConfigFile(absl::string_view path,
                                                         absl::string_view content);

// `text` as a value that ParseConfigFile, and YAML, read as that text.
std::string QuoteValue(absl::string_view text);

}  // namespace kvtier
