#include "server/device/backend.h"

#include "server/core/error.h"

namespace kvtier {

absl::Status RegisteringStopped() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                   "the daemon stops: host memory is not registered any more");
}

}  // namespace kvtier
