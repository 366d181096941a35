#include "client/demo/lru_model.h"

#include <algorithm>
#include <unordered_set>

namespace kvtier::demo {

StepCounts LruModel::Step(std::span<const int32_t> slots, int32_t newest) {
  StepCounts counts;
  std::unordered_set<int32_t> asked;
  std::vector<int32_t> in_order;  // distinct, by first appearance
  for (const int32_t slot : slots) {
    if (slot == newest) {
      ++counts.newest;
    } else if (asked.insert(slot).second) {
      in_order.push_back(slot);
    }
  }
  std::vector<int32_t> stale, hits, misses;
  for (const int32_t slot : order_) {
    // A copy of the row that is being written is good for nothing, but keeps its place.
    const int32_t kept = slot == newest ? -1 : slot;
    (kept >= 0 && asked.count(kept) > 0 ? hits : stale).push_back(kept);
  }
  const std::unordered_set<int32_t> found(hits.begin(), hits.end());
  for (const int32_t slot : in_order) {
    if (found.count(slot) == 0) misses.push_back(slot);
  }
  counts.hits = static_cast<int64_t>(hits.size());
  counts.misses = static_cast<int64_t>(misses.size());

  order_.assign(stale.begin() + std::min(misses.size(), stale.size()), stale.end());
  order_.insert(order_.end(), misses.begin(), misses.end());
  order_.insert(order_.end(), hits.begin(), hits.end());
  return counts;
}

void LruModel::Forget(int32_t block, int32_t block_size) {
  for (int32_t& slot : order_) {
    if (slot >= 0 && slot / block_size == block) slot = -1;
  }
}

}  // namespace kvtier::demo
