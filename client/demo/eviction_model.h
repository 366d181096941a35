// What a region's cache misses, counted apart from the kernels: what the demo compares the
// daemon's statistics with. It knows no rows, no hot slots and no memory, only who is cached.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/params.h"

namespace kvtier::demo {

struct StepCounts {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t newest = 0;
  int64_t kept = 0;  // misses of the row that was backed up last
};

class EvictionModel {
 public:
  EvictionModel(int32_t hot_size, EvictionPolicy policy) : policy_(policy), order_(hot_size) {}

  // One step: `slots` (>= 0, not more distinct ones than hot_size) are asked for, `newest` is
  // being written.
  StepCounts Step(std::span<const int32_t> slots, int32_t newest);

  // The newest row, `slot`, is backed up. Under the aged policy it stays at hand.
  void Backup(int32_t slot);

  // The block was freed: none of its slots counts as cached any more.
  void Forget(int32_t block, int32_t block_size);

 private:
  struct Cached {
    int32_t slot = -1;  // -1 unused
    // Of the aged policy: the cheapest goes, by priority and then by hits.
    int32_t priority = 0;
    int32_t hits = 0;
  };

  std::vector<Cached> TakeVictims(size_t count, std::vector<Cached>* evictable) const;

  const EvictionPolicy policy_;
  std::vector<Cached> order_;  // oldest first
  int32_t kept_ = -1;          // slot of the row that stayed at hand
};

}  // namespace kvtier::demo
