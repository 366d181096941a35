#include <algorithm>
#include <atomic>
#include <cstdint>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/keep_rows.h"
#include "kernels/cpu/workspace.h"
#include "kernels/eviction.h"
#include "kernels/region_index.h"
#include "kernels/stats_block.h"

namespace kvtier::cpu {
namespace {

// Of owners that are looked at together before any is looked at alone: enough that the first look
// costs little, few enough that one owner in the range brings few others with it.
constexpr int32_t kPieceLength = 256;

int32_t Load(const int32_t& owner) {
  return std::atomic_ref<int32_t>(const_cast<int32_t&>(owner)).load(std::memory_order_relaxed);
}

// Is any of them in [begin, end)? Others may write them meanwhile, by single 32-bit stores: what a
// wide load sees of each owner is either value, as with an atomic load, which is all that
// ThreadSanitizer would have.
__attribute__((no_sanitize("thread"))) bool AnyWithin(const int32_t* owners, int32_t count,
                                                      int32_t begin, int32_t end) {
  int32_t h = 0;
  bool any = false;
#if defined(__SSE2__)
  const __m128i begins = _mm_set1_epi32(begin), ends = _mm_set1_epi32(end);
  __m128i found = _mm_setzero_si128();
  for (; h + 4 <= count; h += 4) {
    const __m128i four = _mm_loadu_si128(reinterpret_cast<const __m128i*>(owners + h));
    const __m128i before = _mm_cmplt_epi32(four, begins);
    found = _mm_or_si128(found, _mm_andnot_si128(before, _mm_cmplt_epi32(four, ends)));
  }
  any = _mm_movemask_epi8(found) != 0;
#endif
  for (; h < count; ++h) any |= Load(owners[h]) >= begin && Load(owners[h]) < end;
  return any;
}

}  // namespace

void Invalidate(const InvalidateParams& params, Executor& executor) {
  if (params.block_count <= 0) return;
  std::vector<int32_t>& blocks = executor.call_scratch().blocks;
  blocks.assign(params.blocks, params.blocks + params.block_count);
  std::sort(blocks.begin(), blocks.end());
  // Most owners lie outside the range of the blocks, or between two of them: two comparisons, of
  // many at a time, then a search of few steps.
  const int64_t block_size = params.shape.block_size;
  const auto slot_of = [&](int64_t block) {
    return static_cast<int32_t>(std::clamp<int64_t>(block * block_size, 0, INT32_MAX));
  };
  const int32_t slot_begin = slot_of(blocks.front());
  const int32_t slot_end = slot_of(blocks.back() + int64_t{1});
  executor.ParallelFor(params.shape.region_count, [&](int32_t worker, int64_t region) {
    int64_t dropped = 0;
    const auto drop = [&](int32_t* owners, int32_t count) {
      for (int32_t h = 0; h < count; ++h) {
        const int32_t owner = std::atomic_ref<int32_t>(owners[h]).load();
        if (owner < slot_begin || owner >= slot_end) continue;
        if (!std::binary_search(blocks.begin(), blocks.end(), owner / params.shape.block_size)) {
          continue;
        }
        dropped += DropOwner(&owners[h], owner);
      }
    };
    int32_t* const owners = params.state.owner + region * params.shape.hot_size;
    for (int32_t h = 0; h < params.shape.hot_size; h += kPieceLength) {
      const int32_t length = std::min(kPieceLength, params.shape.hot_size - h);
      if (AnyWithin(owners + h, length, slot_begin, slot_end)) drop(owners + h, length);
    }
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
  if (counts[Counter::kInvalidatedCopies] > 0) AddCounts(params.stats, counts);
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
