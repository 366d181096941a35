#include "kernels/stats_block.h"

#include <atomic>
#include <thread>

namespace kvtier {
namespace {

constexpr int32_t kReadTries = 256;
// On a machine with fewer cores than threads the other writer needs this core to finish.
constexpr int32_t kLooksBetweenYields = 64;

using AtomicCount = std::atomic_ref<int64_t>;
static_assert(AtomicCount::is_always_lock_free, "a lock would not be shared between processes");

uint32_t WeightedSum(const int64_t (&counts)[kCounterCount]) {
  uint32_t sum = 0;
  for (int32_t c = 0; c < kCounterCount; ++c) {
    sum += static_cast<uint32_t>(counts[c]) * CountWeight(c);
  }
  return sum;
}

}  // namespace

uint32_t Imbalance(const StatsBlock& block) {
  return static_cast<uint32_t>(block.check) - WeightedSum(block.counts);
}

void AddCounts(StatsBlock* stats, const Counts& counts) {
  if (stats == nullptr) return;
  for (int32_t c = 0; c < kCounterCount; ++c) {
    if (counts.values[c] == 0) continue;
    AtomicCount(stats->counts[c]).fetch_add(counts.values[c], std::memory_order_relaxed);
  }
  AtomicCount(stats->check).fetch_add(WeightedSum(counts.values), std::memory_order_relaxed);
}

bool ReadCounts(const StatsBlock* stats, Counts* counts) {
  // C++20's atomic_ref has no const form. Only loads follow, so a read-only mapping will do.
  StatsBlock* block = const_cast<StatsBlock*>(stats);
  for (int32_t attempt = 0; attempt < kReadTries; ++attempt) {
    StatsBlock look;
    look.check = AtomicCount(block->check).load(std::memory_order_relaxed);
    for (int32_t c = 0; c < kCounterCount; ++c) {
      look.counts[c] = AtomicCount(block->counts[c]).load(std::memory_order_relaxed);
      counts->values[c] = look.counts[c];
    }
    if (Imbalance(look) == 0) return true;
    if (attempt % kLooksBetweenYields == kLooksBetweenYields - 1) std::this_thread::yield();
  }
  return false;
}

}  // namespace kvtier
