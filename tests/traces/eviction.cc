#include "tests/traces/eviction.h"

#include <numeric>

#include "kernels/cpu/cpu.h"
#include "kernels/stats_block.h"

namespace kvtier::traces {
namespace {

// One region of one layer.
class Region {
 public:
  Region(int32_t top_k, int32_t hot_size, int32_t slot_count, EvictionPolicy policy)
      : owner_(hot_size, kNone), lru_(hot_size), score_(hot_size), hot_indices_(top_k) {
    shape_ = {.top_k = top_k,
              .hot_size = hot_size,
              .region_count = 1,
              .region_stride = RegionStride(hot_size, ReservedRows(1, policy)),
              .block_size = 1,
              .slot_count = slot_count,
              .policy = policy};
    std::iota(lru_.begin(), lru_.end(), int16_t{0});
  }

  // The rows that all steps so far copied from the host pool. Positions are their own slots.
  int64_t Step(const int32_t* positions, int32_t own_position, cpu::Executor* executor) {
    const int32_t region = 0;
    const GroupState state = {
        .owner = owner_.data(), .lru = lru_.data(), .score = score_.data(), .kept = &kept_};
    cpu::SwapIn({.shape = shape_,
                 .state = state,
                 .num_rows = 1,
                 .row_to_request = &region,
                 .topk = positions,
                 .newest_slot = &own_position,
                 .hot_indices = hot_indices_.data(),
                 .stats = &stats_},
                *executor);
    cpu::Backup({.shape = shape_,
                 .state = state,
                 .num_rows = 1,
                 .row_to_request = &region,
                 .slots = &own_position},
                *executor);
    Counts counts;
    ReadCounts(&stats_, &counts);
    return counts[Counter::kMisses] - counts[Counter::kRowsKept];
  }

 private:
  GroupShape shape_;
  std::vector<int32_t> owner_;
  std::vector<int16_t> lru_;
  std::vector<uint8_t> score_;
  int32_t kept_ = kNone;
  std::vector<int32_t> hot_indices_;
  StatsBlock stats_;
};

}  // namespace

std::vector<int64_t> MissesByStep(const client::Trace& trace, int32_t hot_size,
                                  EvictionPolicy policy) {
  cpu::Executor executor(/*thread_count=*/1);
  std::vector<int64_t> misses(trace.step_count);
  for (int32_t layer = 0; layer < trace.layer_count; ++layer) {
    Region region(trace.top_k, hot_size, trace.own_position(trace.step_count), policy);
    int64_t before = 0;
    for (int32_t step = 0; step < trace.step_count; ++step) {
      const int64_t now =
          region.Step(trace.positions_of(layer, step).data(), trace.own_position(step), &executor);
      misses[step] += now - before;
      before = now;
    }
  }
  return misses;
}

Misses MissesOf(const client::Trace& trace, int32_t hot_size, EvictionPolicy policy) {
  const std::vector<int64_t> by_step = MissesByStep(trace, hot_size, policy);
  const auto quarter = static_cast<int64_t>(by_step.size()) / 4;
  return {std::accumulate(by_step.begin(), by_step.end(), int64_t{0}),
          std::accumulate(by_step.begin() + quarter, by_step.end(), int64_t{0})};
}

}  // namespace kvtier::traces
