// How fast rows come from a large host pool, by where the block ledger places a request's blocks.
#pragma once

#include <cstdint>
#include <memory>

#include "server/device/backend.h"
#include "server/host_pool/host_pool.h"

namespace kvtier::testing {

// Of 656 bytes in blocks of 64, one layer.
inline constexpr int32_t kPoolRowBytes = 656;
inline constexpr int32_t kPoolBlockSize = 64;
inline constexpr int64_t kPoolBlockBytes = int64_t{kPoolRowBytes} * kPoolBlockSize;

// A pool whose pages are taken and registered, as the daemon does it. Ends the process on an error.
std::unique_ptr<HostPool> ReadyPool(DeviceBackend* backend, int64_t bytes, int32_t touch_threads);

// Takes a pool of `pool_bytes`, churns ledgers of its blocks, places 64
// requests of 512 blocks, and copies 1,024 random rows of each with the kernel that replays a plan:
// 16 plans in a CUDA graph. Prints a table and a JSON line for each placement; every row that
// arrived is compared. Returns the wrong ones.
int64_t MeasureGather(DeviceBackend* backend, int64_t pool_bytes, int32_t touch_threads);

}  // namespace kvtier::testing
