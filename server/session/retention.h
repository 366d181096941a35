// What sessions leave behind: how much of it stays, and what it is.
#pragma once

#include <cstdint>
#include <optional>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/host_pool/cache_access.h"
#include "server/host_pool/cache_file.h"

namespace kvtier {

// What AttachCache may say beside the layout.
struct AttachOptions {
  std::optional<Retention> retain;
  // Of a cache that this call makes (absent: with nobody). Of another one it must be what is given.
  std::optional<Sharing> share;
  bool replace_kept = false;  // a cache without sessions that has another layout gives way
};

// A block that nobody holds, whose rows are still there.
struct KeptBlockInfo {
  int32_t block_id = 0;
  int32_t generation = 0;
  int64_t tag = 0;
  int32_t rows_backed = 0;
};

// FIELD_INVALID, or OK.
absl::Status CheckRetention(const AttachOptions& options, absl::Duration duration_max);

}  // namespace kvtier
