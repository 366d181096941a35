// The shared memory of a block that resolves a request through its region's index: where each
// array lies.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/counters.h"
#include "kernels/cuda/device.cuh"
#include "kernels/region_index.h"

namespace kvtier::cuda {

// A row of so many blocks has one that keeps its index while the first one writes.
inline constexpr int32_t kBlocksMany = 4;

// Of a count by scores: many hot slots have the same one, so that their threads would wait for each
// other if it were counted in one place, or in places of one bank.
inline constexpr int32_t kScoreValues = 256, kScoreCopies = 8, kScoreStride = kScoreValues + 4;
// Of the counting sort of a step's copies.
inline constexpr int32_t kAddressBuckets = 512;

// Lengths, and byte offsets into the block's shared memory, all multiples of 16. "Missing" is a
// position that the index does not know.
struct IndexedTables {
  int32_t top_k, hot_size;
  int32_t index_length;   // words
  int32_t buckets;        // of the index
  int32_t table_entries;  // a power of two, at least twice top_k

  // Images of the region's state as it was before the step.
  int32_t owner;   // int32 [hot_size]
  int32_t index;   // uint16 [index_length]
  int32_t order;   // int16 [hot_size]
  int32_t is_hit;  // uint8 [hot_size] of each hot slot

  // Only where hot slots have scores.
  int32_t score;      // uint8 [hot_size]
  int32_t evictable;  // uint8 [hot_size] the same of evictables, kUnusableScore of hits
  int32_t
      with_score;  // int32 [kScoreCopies, kScoreStride] evictables that have this score, in parts
  int32_t warp_draws;  // uint32 [32] of each warp's order entries: those below the limit in the
                       // lower half, those at it in the upper one

  // Of positions, where a warp has more of them than it can hold in registers.
  int32_t slot_at;     // int32 [top_k]
  int32_t missing_at;  // uint32 [position_words] a bit for each that is missing
  // Of missing positions, if rows are tracked.
  int32_t backed;   // int32 [top_k] generation under which the row was backed up
  int32_t current;  // int32 [top_k] generation of its block
  // Where they are not, this is no longer needed once all are counted.
  int32_t stage;        // bytes of rows, equal parts for the warps
  int32_t stage_bytes;  // all of it

  // Of missing positions, in order.
  int32_t position;  // uint16 [top_k]
  int32_t slot;      // int32 [top_k]; kNone once it is known to have no source
  int32_t table;     // int32 [table_entries] by slot: the first missing position that asks for it

  // Only if some of them ask for the same slot.
  int32_t first;   // uint16 [top_k] the first missing position with this one's slot
  int32_t firsts;  // uint32 [position_words] a bit for each that is the first
  int32_t miss;    // uint16 [top_k] number of the miss of a first one
  int32_t origin;  // uint16 [top_k] of misses: the missing position

  // Of misses, in order of first appearance.
  int32_t victim;  // uint16 [top_k] the hot slot it draws

  // Where copies are sorted.
  int32_t starts;   // int32 [kAddressBuckets]
  int32_t address;  // uint16 [top_k] of misses, in the order of their addresses

  int32_t warp_sums;  // uint32 [32] missing positions of each warp
  int32_t warp_hits;  // uint32 [32] hits in its part of the order
  int32_t counts;     // int32 [kCounterCount]
  int32_t words;      // int32 [8], see indexed_resolver.cuh
  int32_t barrier;    // uint64 that counts what bulk copies bring
  int32_t total;
};

__host__ __device__ constexpr IndexedTables MakeIndexedTables(int32_t top_k, int32_t hot_size,
                                                              bool has_scores) {
  IndexedTables t = {};
  t.top_k = top_k;
  t.hot_size = hot_size;
  t.index_length = RegionIndexLength(hot_size);
  t.buckets = RegionIndexBuckets(hot_size);
  t.table_entries = 32;
  while (t.table_entries < 2 * top_k) t.table_entries *= 2;
  int32_t at = 0;
  const auto cut = [&at](int32_t bytes) {
    const int32_t start = at;
    at += (bytes + 15) / 16 * 16;
    return start;
  };
  const int32_t position_words = (top_k + kWarpThreads - 1) / kWarpThreads;
  t.owner = cut(4 * hot_size);
  t.index = cut(2 * t.index_length);
  t.order = cut(2 * hot_size);
  t.is_hit = cut(hot_size);
  t.score = cut(has_scores ? hot_size : 0);
  t.evictable = cut(has_scores ? hot_size : 0);
  t.with_score = cut(has_scores ? 4 * kScoreCopies * kScoreStride : 0);
  t.warp_draws = cut(has_scores ? 4 * kWarpThreads : 0);
  t.slot_at = cut(4 * top_k);
  t.missing_at = cut(4 * position_words);
  t.backed = cut(4 * top_k);
  t.current = cut(4 * top_k);
  t.stage = t.slot_at;
  t.stage_bytes = at - t.stage;
  t.position = cut(2 * top_k);
  t.slot = cut(4 * top_k);
  const int32_t entries_max = t.table_entries > kAddressBuckets ? t.table_entries : kAddressBuckets;
  t.table = cut(4 * entries_max);
  t.starts = t.table;  // once all is placed
  t.first = cut(2 * top_k);
  t.firsts = cut(4 * position_words);
  t.miss = cut(2 * top_k);
  t.origin = cut(2 * top_k);
  t.victim = cut(2 * top_k);
  t.address = t.first;  // nobody needs that any more
  t.warp_sums = cut(4 * kWarpThreads);
  t.warp_hits = cut(4 * kWarpThreads);
  t.counts = cut(4 * kCounterCount);
  t.words = cut(32);
  t.barrier = cut(8);
  t.total = at;
  return t;
}

// The tuned sizes (kernels/cuda/indexed_swap_in.cu) fit into a block's shared memory everywhere
// from sm_80 on.
static_assert(MakeIndexedTables(2048, 4096, true).total <= 163 * 1024);

// The array of T at `offset`.
template <typename T>
__device__ inline T* Shared(int32_t offset) {
  return reinterpret_cast<T*>(SharedBytes() + offset);
}

}  // namespace kvtier::cuda
