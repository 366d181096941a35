// Which backend a daemon gets.
#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/device/backend.h"

namespace kvtier {

struct ChosenBackend {
  std::unique_ptr<DeviceBackend> backend;
  std::string note;  // which, and why, in one line
};

// `name`: "auto" (the best there is), "cpu", "cuda". `cpu_threads`: of each stream of the CPU
// backend. Errors: FIELD_INVALID; UNIMPLEMENTED / NOT_IMPLEMENTED for "cuda" in a build without it.
absl::StatusOr<ChosenBackend> MakeBackend(absl::string_view name, int cpu_threads);

}  // namespace kvtier
