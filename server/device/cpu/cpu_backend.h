// The device "CPU-0": hot buffers in shared memory, kernels on CPU cores.
//
// Complete, and bit for bit what a GPU does: for machines without one, for CI, for the demo.
//
//   auto backend = MakeCpuBackend({.threads = 2});
#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "server/device/backend.h"
#include "server/device/cpu/cpu_stepper.h"

namespace kvtier {

inline constexpr char kCpuDeviceUuid[] = "CPU-0";

struct CpuBackendOptions {
  // Threads that run the kernels of one stream. 1..64; results do not depend on it.
  int threads = 1;
  // Bytes of all living allocations together. 0: what the machine has.
  int64_t memory_bytes_max = 0;
  // For tests: no stream moves by itself.
  std::shared_ptr<CpuStepper> stepper;
};

// Memory, streams and registrations may outlive the backend.
//
// Allocations take their pages at once (RESOURCE_EXHAUSTED instead of a SIGBUS later), and are
// exported as descriptors of a sealed memfd, offset 0. Streams are queues without a bound: who
// enqueues bounds what is in flight. RegisterHost keeps book only: INVALID_ARGUMENT for an empty
// range, INTERNAL / DEVICE_ERROR for one that overlaps another, as a GPU's driver would say.
// Errors: INVALID_ARGUMENT / FIELD_INVALID for options out of range.
absl::StatusOr<std::unique_ptr<DeviceBackend>> MakeCpuBackend(const CpuBackendOptions& options);

}  // namespace kvtier
