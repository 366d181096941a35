// Memory of the daemon's as this process's GPU reaches it. Internal to client/cuda.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "client/cuda/driver.h"
#include "client/mapping.h"
#include "proto/kvtier/v1/types.pb.h"

namespace kvtier::client {

// A GPU of this process. Mappings keep a copy.
struct Gpu {
  Driver driver;
  int ordinal = 0;
  CUcontext context = nullptr;  // its primary one, which lives as long as the process
};

// GPU memory passed by file descriptor.
absl::StatusOr<std::unique_ptr<Mapping>> ImportFd(const Gpu& gpu, const v1::Segment& segment,
                                                  const RedeemToken& redeem);

// GPU memory passed by cudaIpcMemHandle_t. One process may open a handle only once: the segment
// must not be mapped a second time while this lives.
absl::StatusOr<std::unique_ptr<Mapping>> OpenIpc(const Gpu& gpu, const v1::Segment& segment);

// Host memory, mapped and registered with the driver in chunks for every GPU of the process.
absl::StatusOr<std::unique_ptr<Mapping>> MapRegistered(const Gpu& gpu, const v1::Segment& segment,
                                                       const RedeemToken& redeem);

}  // namespace kvtier::client
