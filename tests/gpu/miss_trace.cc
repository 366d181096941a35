#include "tests/gpu/miss_trace.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace kvtier::testing {
namespace {

// The first `count` elements become a random choice of all, in random order.
void ShuffleFront(Random* random, int32_t count, std::vector<int32_t>* values) {
  const auto size = static_cast<int32_t>(values->size());
  for (int32_t i = 0; i < count; ++i) {
    std::swap((*values)[i], (*values)[i + random->Below(size - i)]);
  }
}

}  // namespace

MissTrace::MissTrace(uint64_t seed, int32_t top_k, int32_t hot_size, int32_t context,
                     int32_t misses)
    : random_(seed),
      hot_size_(hot_size),
      context_(context),
      misses_(misses),
      is_cached_(context),
      is_asked_(context) {
  std::vector<int32_t> positions(context);
  std::iota(positions.begin(), positions.end(), 0);
  ShuffleFront(&random_, top_k, &positions);
  topk_.assign(positions.begin(), positions.begin() + top_k);
}

const std::vector<int32_t>& MissTrace::Next() {
  if (!order_.empty()) {
    ShuffleFront(&random_, static_cast<int32_t>(topk_.size()), &topk_);
    for (int32_t drawn = 0; drawn < misses_;) {
      const int32_t position = random_.Below(context_);
      if (is_cached_[position] || is_asked_[position]) continue;
      is_asked_[position] = true;
      topk_[drawn++] = position;
    }
    ShuffleFront(&random_, static_cast<int32_t>(topk_.size()), &topk_);
  }
  Touch(topk_);
  return topk_;
}

// Exact LRU at the granularity of steps: evictables, then misses in order, then hits.
void MissTrace::Touch(const std::vector<int32_t>& positions) {
  for (const int32_t position : positions) is_asked_[position] = true;
  const auto first_hit = std::stable_partition(
      order_.begin(), order_.end(), [this](int32_t position) { return !is_asked_[position]; });
  std::vector<int32_t> next(order_.begin(), first_hit);
  for (const int32_t position : positions) {
    if (!is_cached_[position]) next.push_back(position);
  }
  next.insert(next.end(), first_hit, order_.end());
  for (const int32_t position : positions) {
    is_asked_[position] = false;
    is_cached_[position] = true;
  }
  const auto excess = std::max<int64_t>(std::ssize(next) - hot_size_, 0);
  for (int64_t i = 0; i < excess; ++i) is_cached_[next[i]] = false;
  order_.assign(next.begin() + excess, next.end());
}

}  // namespace kvtier::testing
