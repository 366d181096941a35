// Gives memory back to the system that was freed, where it is much.
//
// The C library keeps what was freed for the next allocation, in heaps of several threads: after a
// burst (thousands of calls, answers of gigabytes) for good, and under a steady load for hours more
// and more of it, a page here and a page there that no allocation of its size asks for.
#pragma once

#include "absl/time/time.h"

namespace kvtier {

// From now on all threads share kHeapsMax heaps, where the C library would make one for nearly each
// of them, up to eight for each processor: what is free in one is of no use to the others, so that
// a daemon on a large machine holds more and takes minutes to come to what it needs. Call it before
// the first thread.
inline constexpr int kHeapsMax = 8;
void LimitHeaps();

// For one thread.
class MemoryTrimmer {
 public:
  // Looks every few seconds whether it is much, and gives back every minute what there is. Each
  // heap is locked for moments.
  void Tick(absl::Time now);

 private:
  absl::Time next_look_ = absl::InfinitePast(), next_trim_ = absl::InfinitePast();
};

}  // namespace kvtier
