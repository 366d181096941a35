// Blocks that nobody holds, but whose rows stay until somebody takes them up again or the space is
// wanted.
//
// Not thread-safe. Costs: O(log kept) a block.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/container/btree_map.h"
#include "absl/container/btree_set.h"

namespace kvtier {

class KeptBlocks {
 public:
  // Younger than all that are kept already.
  void Add(int32_t block);
  bool Contains(int32_t block) const { return by_block_.contains(block); }
  // False: it was not kept.
  bool Remove(int32_t block);
  // The oldest `count`, or all; oldest first.
  std::vector<int32_t> TakeOldest(int32_t count);

  int32_t count() const { return static_cast<int32_t>(by_block_.size()); }
  // By block id from `first` on, `count_max` at most.
  std::vector<int32_t> List(int32_t first, int32_t count_max) const;

 private:
  absl::btree_map<int32_t, int64_t> by_block_;           // block -> number of its Add
  absl::btree_set<std::pair<int64_t, int32_t>> by_age_;  // the same, turned round
  int64_t last_number_ = 0;
};

}  // namespace kvtier
