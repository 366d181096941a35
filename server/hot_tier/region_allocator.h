// Which regions of a hot buffer are free.
#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

namespace kvtier {

// Hands out the lowest free region first, so that a lightly loaded session touches little of its
// hot buffer. Not thread-safe.
class RegionAllocator {
 public:
  explicit RegionAllocator(int32_t region_count)
      : region_count_(region_count), is_taken_(region_count) {
    std::vector<int32_t> regions(region_count);
    std::iota(regions.begin(), regions.end(), 0);
    free_ = Heap(std::greater<int32_t>(), std::move(regions));
  }

  // Absent: none is free.
  std::optional<int32_t> Take() {
    if (free_.empty()) return std::nullopt;
    const int32_t region = free_.top();
    free_.pop();
    is_taken_[region] = true;
    end_ = std::max(end_, region + 1);
    return region;
  }
  // `region` was taken and not given back since.
  void Return(int32_t region) {
    free_.push(region);
    is_taken_[region] = false;
    while (end_ > 0 && !is_taken_[end_ - 1]) --end_;
  }

  int32_t region_count() const { return region_count_; }
  int32_t free_count() const { return static_cast<int32_t>(free_.size()); }
  // Every region that is taken lies before it; 0: none is.
  int32_t end() const { return end_; }

 private:
  using Heap = std::priority_queue<int32_t, std::vector<int32_t>, std::greater<int32_t>>;

  int32_t region_count_;
  std::vector<bool> is_taken_;
  int32_t end_ = 0;
  Heap free_;
};

}  // namespace kvtier
