#include <algorithm>
#include <atomic>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/keep_rows.h"
#include "kernels/cpu/workspace.h"
#include "kernels/eviction.h"
#include "kernels/region_index.h"
#include "kernels/stats_block.h"

namespace kvtier::cpu {

void Invalidate(const InvalidateParams& params, Executor& executor) {
  if (params.block_count <= 0) return;
  std::vector<int32_t>& blocks = executor.call_scratch().blocks;
  blocks.assign(params.blocks, params.blocks + params.block_count);
  std::sort(blocks.begin(), blocks.end());
  // Most owners lie outside the range of the blocks, or between two of them: two comparisons, then
  // a search of few steps.
  const int64_t block_size = params.shape.block_size;
  const int64_t slot_begin = blocks.front() * block_size;
  const int64_t slot_end = (blocks.back() + int64_t{1}) * block_size;
  executor.ParallelFor(params.shape.region_count, [&](int32_t worker, int64_t region) {
    int64_t dropped = 0;
    const auto drop = [&](int32_t* owners, int32_t count) {
      for (int32_t h = 0; h < count; ++h) {
        const int32_t owner = std::atomic_ref<int32_t>(owners[h]).load();
        if (owner < 0 || owner < slot_begin || owner >= slot_end) continue;
        if (!std::binary_search(blocks.begin(), blocks.end(), owner / params.shape.block_size)) {
          continue;
        }
        dropped += DropOwner(&owners[h], owner);
      }
    };
    drop(params.state.owner + region * params.shape.hot_size, params.shape.hot_size);
    int32_t* const kept = KeptOf(params.shape, params.state, static_cast<int32_t>(region));
    if (kept != nullptr) drop(kept, params.shape.rows_per_request);
    executor.workspace(worker).counts[Counter::kInvalidatedCopies] += dropped;
  });
  Counts counts;
  for (int32_t worker = 0; worker < executor.thread_count(); ++worker) {
    Counts& part = executor.workspace(worker).counts;
    counts[Counter::kInvalidatedCopies] += part[Counter::kInvalidatedCopies];
    part = Counts{};
  }
  AddCounts(params.stats, counts);
}

void ResetRegion(const ResetRegionParams& params) {
  if (params.region < 0 || params.region >= params.shape.region_count) return;
  const int64_t first = int64_t{params.region} * params.shape.hot_size;
  for (int32_t h = 0; h < params.shape.hot_size; ++h) {
    std::atomic_ref<int32_t>(params.state.owner[first + h]).store(kNone, std::memory_order_relaxed);
    std::atomic_ref<int16_t>(params.state.lru[first + h])
        .store(static_cast<int16_t>(h), std::memory_order_relaxed);
  }
  uint8_t* const scores = ScoresOf(params.shape, params.state, params.region);
  if (scores != nullptr) std::fill_n(scores, params.shape.hot_size, kNoScore);
  int32_t* const kept = KeptOf(params.shape, params.state, params.region);
  for (int32_t rank = 0; kept != nullptr && rank < params.shape.rows_per_request; ++rank) {
    std::atomic_ref<int32_t>(kept[rank]).store(kNone);
  }
  if (params.state.index == nullptr) return;
  const int64_t words = RegionIndexLength(params.shape.hot_size);
  std::fill_n(params.state.index + params.region * words, words, uint16_t{0});
}

}  // namespace kvtier::cpu
