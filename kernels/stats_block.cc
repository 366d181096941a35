#include "kernels/stats_block.h"

#include <atomic>
#include <thread>

namespace kvtier {
namespace {

constexpr int32_t kTakeOverLooks = 4096;
constexpr int32_t kReadTries = 1024;
// On a machine with fewer cores than threads the other writer needs this core to finish.
constexpr int32_t kLooksBetweenYields = 64;

using AtomicCount = std::atomic_ref<int64_t>;
static_assert(AtomicCount::is_always_lock_free, "a lock would not be shared between processes");

// Makes `sequence` odd and returns its new value: this writer's turn.
int64_t BeginTurn(AtomicCount sequence) {
  int64_t seen = sequence.load(std::memory_order_relaxed);
  int32_t looks = 0;  // at the same odd value
  for (;;) {
    const bool free = (seen & 1) == 0;
    if (free || looks >= kTakeOverLooks) {
      const int64_t turn = seen + (free ? 1 : 2);
      if (sequence.compare_exchange_weak(seen, turn, std::memory_order_acq_rel,
                                         std::memory_order_relaxed)) {
        return turn;
      }
      looks = 0;
      continue;
    }
    if (++looks % kLooksBetweenYields == 0) std::this_thread::yield();
    const int64_t now = sequence.load(std::memory_order_relaxed);
    if (now != seen) looks = 0;
    seen = now;
  }
}

}  // namespace

void AddCounts(StatsBlock* stats, const Counts& counts) {
  if (stats == nullptr) return;
  AtomicCount sequence(stats->sequence);
  int64_t turn = BeginTurn(sequence);
  for (int32_t c = 0; c < kCounterCount; ++c) {
    if (counts.values[c] == 0) continue;
    // Release: a reader that sees this value also sees the odd sequence before it. An addition,
    // not a store, so that nothing is lost when a turn was taken over too early.
    AtomicCount(stats->counts[c]).fetch_add(counts.values[c], std::memory_order_release);
  }
  // Fails when another writer took the turn over: then it, not we, ends it.
  sequence.compare_exchange_strong(turn, turn + 1, std::memory_order_release,
                                   std::memory_order_relaxed);
}

bool ReadCounts(const StatsBlock* stats, Counts* counts) {
  // C++20's atomic_ref has no const form. Only loads follow, so a read-only mapping will do.
  StatsBlock* block = const_cast<StatsBlock*>(stats);
  AtomicCount sequence(block->sequence);
  for (int32_t attempt = 0; attempt < kReadTries; ++attempt) {
    const int64_t before = sequence.load(std::memory_order_acquire);
    for (int32_t c = 0; c < kCounterCount; ++c) {
      // Acquire keeps the second look at `sequence` behind this load (no fence: ThreadSanitizer
      // does not know fences).
      counts->values[c] = AtomicCount(block->counts[c]).load(std::memory_order_acquire);
    }
    const int64_t after = sequence.load(std::memory_order_relaxed);
    if (before == after && (before & 1) == 0) return true;
    if (attempt % kLooksBetweenYields == kLooksBetweenYields - 1) std::this_thread::yield();
  }
  return false;
}

}  // namespace kvtier
