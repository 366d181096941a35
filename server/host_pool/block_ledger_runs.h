// Free blocks as runs of neighbours.
//
// A request whose blocks are neighbours is gathered up to twice as fast as one whose blocks lie
// anywhere in a large pool (address translation), so runs are kept by place and by length: both
// "what is free behind this block" and "the smallest run that is long enough" cost O(log runs).
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"

namespace kvtier {

// Not thread-safe.
class FreeRuns {
 public:
  // All of 0..block_count-1 are free.
  explicit FreeRuns(int32_t block_count);

  int32_t free_count() const { return free_count_; }
  int32_t largest_run() const { return by_length_.empty() ? 0 : by_length_.rbegin()->first; }
  bool IsFree(int32_t block) const;

  // Takes `count` <= free_count() blocks, in this order of preference: from `next_to` on, if that
  // block is free; the smallest run that holds the rest and `room` more (where later blocks of
  // the same holder will fit); the smallest run that holds the rest; the lowest ids.
  std::vector<int32_t> Take(int32_t count, int32_t next_to, int32_t room);

  // Gives back blocks that are not free; any order, no repetition.
  void Put(std::vector<int32_t> blocks);

 private:
  // Takes up to `count` blocks from `start`, which is inside the run at `run_start`.
  void TakeFrom(int32_t run_start, int32_t start, int32_t count, std::vector<int32_t>* taken);
  void PutRange(int32_t start, int32_t length);
  void Insert(int32_t start, int32_t length);
  void Erase(int32_t start, int32_t length);

  int32_t free_count_ = 0;
  absl::btree_map<int32_t, int32_t> by_start_;              // start -> length
  absl::btree_set<std::pair<int32_t, int32_t>> by_length_;  // (length, start)
};

}  // namespace kvtier
