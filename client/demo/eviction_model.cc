#include "client/demo/eviction_model.h"

#include <algorithm>
#include <tuple>
#include <unordered_set>

namespace kvtier::demo {
namespace {

constexpr int32_t kFirstPriority = 16, kPriorityPerHit = 2, kHitsMax = 7;

}  // namespace

// Removes from `evictable`, oldest first, those that `count` misses take.
std::vector<EvictionModel::Cached> EvictionModel::TakeVictims(
    size_t count, std::vector<Cached>* evictable) const {
  count = std::min(count, evictable->size());
  if (policy_ == EvictionPolicy::kAged) {
    using Price = std::tuple<int32_t, int32_t, size_t>;  // priority, hits, age
    std::vector<Price> prices;
    for (size_t i = 0; i < evictable->size(); ++i) {
      prices.emplace_back((*evictable)[i].priority, (*evictable)[i].hits, i);
    }
    std::sort(prices.begin(), prices.end());
    std::vector<bool> is_taken(evictable->size());
    for (size_t i = 0; i < count; ++i) is_taken[std::get<2>(prices[i])] = true;
    std::vector<Cached> taken, rest;
    for (size_t i = 0; i < evictable->size(); ++i) {
      (is_taken[i] ? taken : rest).push_back((*evictable)[i]);
    }
    *evictable = rest;
    return taken;
  }
  const auto end = evictable->begin() + static_cast<int64_t>(count);
  const std::vector<Cached> oldest(evictable->begin(), end);
  evictable->erase(evictable->begin(), end);
  return oldest;
}

StepCounts EvictionModel::Step(std::span<const int32_t> slots, int32_t newest) {
  StepCounts counts;
  std::unordered_set<int32_t> missing;
  std::vector<int32_t> in_order;  // distinct, by first appearance
  for (const int32_t slot : slots) {
    if (slot == newest) {
      ++counts.newest;
    } else if (missing.insert(slot).second) {
      in_order.push_back(slot);
    }
  }
  std::vector<Cached> evictable, hits;
  for (Cached cached : order_) {
    cached.priority = std::max(cached.priority - 1, 0);
    // A copy of the row that is being written is good for nothing, but keeps its place.
    if (cached.slot == newest) cached = Cached{};
    if (cached.slot < 0 || missing.erase(cached.slot) == 0) {
      evictable.push_back(cached);
      continue;
    }
    cached.hits = std::min(cached.hits + 1, kHitsMax);
    cached.priority = kFirstPriority + kPriorityPerHit * cached.hits;
    hits.push_back(cached);
  }
  counts.hits = static_cast<int64_t>(hits.size());
  counts.misses = static_cast<int64_t>(missing.size());
  if (kept_ == newest) kept_ = -1;
  counts.kept = static_cast<int64_t>(missing.count(kept_));

  std::vector<Cached> places = TakeVictims(missing.size(), &evictable);
  size_t next = 0;
  for (const int32_t slot : in_order) {
    if (next == places.size()) break;
    if (missing.count(slot) > 0) places[next++] = {slot, kFirstPriority, 0};
  }
  order_ = evictable;
  order_.insert(order_.end(), places.begin(), places.end());
  order_.insert(order_.end(), hits.begin(), hits.end());
  return counts;
}

void EvictionModel::Backup(int32_t slot) {
  if (policy_ == EvictionPolicy::kAged) kept_ = slot;
}

void EvictionModel::Forget(int32_t block, int32_t block_size) {
  if (kept_ >= 0 && kept_ / block_size == block) kept_ = -1;
  for (Cached& cached : order_) {
    if (cached.slot >= 0 && cached.slot / block_size == block) cached.slot = -1;
  }
}

}  // namespace kvtier::demo
