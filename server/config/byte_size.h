// Sizes as people write them.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace kvtier {

// "4096", "64KiB", "1.5GiB": a number, and KiB, MiB, GiB or TiB; whole bytes, > 0. Not "GB",
// which people mean in two ways. Errors: INVALID_ARGUMENT.
absl::StatusOr<int64_t> ParseByteSize(absl::string_view text);

}  // namespace kvtier
