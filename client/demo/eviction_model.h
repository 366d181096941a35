// An exact LRU of one region, counted apart from the kernels: what the demo compares the
// daemon's statistics with. It knows no rows, no hot slots and no memory, only who is cached.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace kvtier::demo {

struct StepCounts {
  int64_t hits = 0;
  int64_t misses = 0;
  int64_t newest = 0;
};

class LruModel {
 public:
  explicit LruModel(int32_t hot_size) : order_(hot_size, -1) {}

  // One step: `slots` (>= 0, not more distinct ones than hot_size) are asked for, `newest` is
  // being written.
  StepCounts Step(std::span<const int32_t> slots, int32_t newest);

  // The block was freed: none of its slots counts as cached any more.
  void Forget(int32_t block, int32_t block_size);

 private:
  std::vector<int32_t> order_;  // cached slots, oldest first; -1 unused
};

}  // namespace kvtier::demo
