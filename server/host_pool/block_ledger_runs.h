// Things of a numbered row that are free, as runs of neighbours: blocks, or neighbourhoods.
//
// Runs are kept by place and by length: both "what is free from here on" and "the smallest run
// that is long enough" cost O(log runs).
#pragma once

#include <cstdint>
#include <utility>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"

namespace kvtier {

// Not thread-safe.
class FreeRuns {
 public:
  // [start, start + length); nothing if length is 0.
  struct Run {
    int32_t start = 0;
    int32_t length = 0;
  };

  // All of 0..count-1 are free.
  explicit FreeRuns(int32_t count);

  int32_t free_count() const { return free_count_; }
  int32_t largest_run() const { return by_length_.empty() ? 0 : by_length_.rbegin()->first; }
  bool IsFree(int32_t at) const { return From(at).length > 0; }

  // What is free from `at` on without a gap: nothing if `at` is not.
  Run From(int32_t at) const;
  // The first run that has a part in [begin, end): that part.
  Run FirstIn(int32_t begin, int32_t end) const;
  // The smallest run of at least `length`, else the longest there is; the first among equals.
  Run Fit(int64_t length) const;

  // All of the run is free.
  void Take(Run run);
  // Nothing of the run is free.
  void Put(Run run);

 private:
  void Insert(int32_t start, int32_t length);
  void Erase(int32_t start, int32_t length);

  int32_t free_count_ = 0;
  absl::btree_map<int32_t, int32_t> by_start_;              // start -> length
  absl::btree_set<std::pair<int32_t, int32_t>> by_length_;  // (length, start)
};

}  // namespace kvtier
