#include "server/host_pool/host_pool_space.h"

#include <algorithm>
#include <iterator>

namespace kvtier {

std::optional<int64_t> PoolSpace::Take(int64_t bytes) {
  auto best = free_.end();
  for (auto it = free_.begin(); it != free_.end(); ++it) {
    if (it->second >= bytes && (best == free_.end() || it->second < best->second)) best = it;
  }
  if (best == free_.end()) return std::nullopt;
  const auto [offset, available] = *best;
  free_.erase(best);
  if (available > bytes) free_[offset + bytes] = available - bytes;
  used_bytes_ += bytes;
  return offset;
}

bool PoolSpace::TakeAt(int64_t offset_bytes, int64_t bytes) {
  if (bytes <= 0) return false;
  auto found = free_.upper_bound(offset_bytes);
  if (found == free_.begin()) return false;
  --found;
  const auto [start, available] = *found;
  // Subtractions only: the numbers are a file's.
  const int64_t before = offset_bytes - start;
  if (before > available || bytes > available - before) return false;
  free_.erase(found);
  if (before > 0) free_[start] = before;
  if (before + bytes < available) free_[offset_bytes + bytes] = available - before - bytes;
  used_bytes_ += bytes;
  return true;
}

void PoolSpace::GiveBack(int64_t offset_bytes, int64_t bytes) {
  used_bytes_ -= bytes;
  auto next = free_.lower_bound(offset_bytes);
  if (next != free_.end() && next->first == offset_bytes + bytes) {
    bytes += next->second;
    next = free_.erase(next);
  }
  if (next != free_.begin()) {
    const auto previous = std::prev(next);
    if (previous->first + previous->second == offset_bytes) {
      previous->second += bytes;
      return;
    }
  }
  free_[offset_bytes] = bytes;
}

int64_t PoolSpace::largest_free_bytes() const {
  int64_t largest = 0;
  for (const auto& [offset, bytes] : free_) largest = std::max(largest, bytes);
  return largest;
}

std::vector<PoolSpace::Range> PoolSpace::DirtyIn(int64_t offset_bytes, int64_t bytes) const {
  std::vector<Range> dirty;
  const int64_t end = offset_bytes + bytes;
  auto range = dirty_.upper_bound(offset_bytes);
  if (range != dirty_.begin()) --range;
  for (; range != dirty_.end() && range->first < end; ++range) {
    const int64_t from = std::max(range->first, offset_bytes);
    const int64_t to = std::min(range->second, end);
    if (from < to) dirty.push_back({from, to - from});
  }
  return dirty;
}

void PoolSpace::MarkDirty(int64_t offset_bytes, int64_t bytes) {
  int64_t end = offset_bytes + bytes;
  auto range = dirty_.upper_bound(offset_bytes);
  if (range != dirty_.begin() && std::prev(range)->second >= offset_bytes) --range;
  while (range != dirty_.end() && range->first <= end) {
    offset_bytes = std::min(offset_bytes, range->first);
    end = std::max(end, range->second);
    range = dirty_.erase(range);
  }
  dirty_[offset_bytes] = end;
}

void PoolSpace::MarkClean(int64_t offset_bytes, int64_t bytes) {
  const int64_t end = offset_bytes + bytes;
  auto range = dirty_.upper_bound(offset_bytes);
  if (range != dirty_.begin()) --range;
  while (range != dirty_.end() && range->first < end) {
    const auto [from, to] = *range;
    if (to <= offset_bytes) {
      ++range;
      continue;
    }
    range = dirty_.erase(range);
    if (from < offset_bytes) dirty_[from] = offset_bytes;
    if (to > end) dirty_[end] = to;
  }
}

}  // namespace kvtier
