// How other processes map the memory of one attachment.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "server/core/shared_memory.h"
#include "server/device/backend.h"
#include "server/session/cache_memory.h"
#include "server/session/token_table.h"
#include "server/session/types.h"

namespace kvtier {

// Taken once when a session attaches, so that giving out tokens again touches no memory that
// the reaper may be freeing. Not thread-safe.
class SegmentHandles {
 public:
  // Both in the order of SegmentKind. Errors: RESOURCE_EXHAUSTED.
  absl::Status AddFd(SegmentKind kind, const SharedRange& range, bool read_only);
  absl::Status AddDevice(SegmentKind kind, const DeviceMemory& memory);

  // The segments with a new token for each descriptor. Errors: RESOURCE_EXHAUSTED,
  // SESSION_CLOSED.
  absl::StatusOr<std::vector<SegmentInfo>> Issue(absl::string_view session_id,
                                                 absl::string_view cache, TokenTable* tokens) const;

 private:
  struct Handle {
    SegmentInfo info;
    UniqueFd fd;  // kPosixFd, kCudaFd
  };
  std::vector<Handle> handles_;
};

}  // namespace kvtier
