// Gives memory back to the system that was freed, where it is much.
//
// The C library keeps what was freed for the next allocation, in heaps of several threads: after a
// burst (thousands of calls, answers of gigabytes) for good.
#pragma once

#include "absl/time/time.h"

namespace kvtier {

// For one thread.
class MemoryTrimmer {
 public:
  // Looks every few seconds. Each heap is locked for moments.
  void Tick(absl::Time now);

 private:
  absl::Time next_ = absl::InfinitePast();
};

}  // namespace kvtier
