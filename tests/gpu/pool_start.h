// How long it takes until a host pool can be used: by the daemon, and by a worker that joins.
#pragma once

#include <cstdint>

#include "server/device/backend.h"

namespace kvtier::testing {

// `bytes` by cudaHostAlloc, and the daemon's way with 4 and with `threads` threads; three times
// each, in turn. `backend` has a device in use, so that memory is registered at once.
void MeasurePin(DeviceBackend* backend, int64_t bytes, int32_t threads);

// Another process maps and registers a pool of `bytes` that is there: on 1, 2, 4 and 8 threads, a
// new process each.
void MeasureAttach(DeviceBackend* backend, int64_t bytes, int32_t touch_threads);

// What that process does. Returns its exit status.
int AttachAsWorker(int fd, int64_t bytes, int32_t threads);

}  // namespace kvtier::testing
