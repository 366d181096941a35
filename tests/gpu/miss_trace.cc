#include "tests/gpu/miss_trace.h"

#include <numeric>
#include <utility>

#include "kernels/layout.h"

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
      context_(context),
      misses_(misses),
      cached_(hot_size, kNone),
      is_cached_(context),
      is_asked_(context) {
  std::vector<int32_t> positions(context);
  std::iota(positions.begin(), positions.end(), 0);
  ShuffleFront(&random_, top_k, &positions);
  topk_.assign(positions.begin(), positions.begin() + top_k);
}

const std::vector<int32_t>& MissTrace::Next() {
  if (!has_begun_) {
    has_begun_ = true;
    return topk_;
  }
  ShuffleFront(&random_, static_cast<int32_t>(topk_.size()), &topk_);
  for (int32_t drawn = 0; drawn < misses_;) {
    const int32_t position = random_.Below(context_);
    if (is_cached_[position] || is_asked_[position]) continue;
    is_asked_[position] = true;
    topk_[drawn++] = position;
  }
  for (int32_t i = 0; i < misses_; ++i) is_asked_[topk_[i]] = false;
  ShuffleFront(&random_, static_cast<int32_t>(topk_.size()), &topk_);
  return topk_;
}

void MissTrace::Note(const int32_t* hot_slots) {
  for (size_t i = 0; i < topk_.size(); ++i) {
    int32_t& position = cached_[hot_slots[i]];
    if (position != kNone && position != topk_[i]) is_cached_[position] = false;
    position = topk_[i];
    is_cached_[position] = true;
  }
}

}  // namespace kvtier::testing
