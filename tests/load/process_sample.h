// What a process holds, as the kernel says it.
#pragma once

#include <sys/types.h>

#include <cstdint>

#include "absl/status/statusor.h"

namespace kvtier::load {

struct ProcessSample {
  int64_t anonymous_bytes = 0;  // resident, of its own: heap and stacks, where leaks are
  int64_t shared_bytes = 0;     // resident, shared memory: pool, hot buffers
  int64_t descriptors = 0;
  int64_t threads = 0;
  double cpu_seconds = 0;  // since its start
};

// Errors: NOT_FOUND if there is no such process.
absl::StatusOr<ProcessSample> SampleProcess(pid_t pid);

}  // namespace kvtier::load
