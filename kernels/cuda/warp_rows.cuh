// The rows that a warp copies, and those that it begins to read before their places are known.
#pragma once

#include "kernels/cuda/copy_row.cuh"
#include "kernels/cuda/indexed_swap_in.h"
#include "kernels/cuda/shares.cuh"

namespace kvtier::cuda {

// Where a row's bytes come from: a host row, or the kept row that `from` names.
template <bool kAged>
__device__ inline const uint8_t* ValuesAt(const LayerView& layer, int32_t from) {
  const bool is_kept = kAged && NamesHotRow(from);
  return (is_kept ? layer.hot : layer.host) +
         ValueOffset(layer.layout, is_kept ? HotRowIn(from) : from);
}

// Rows of a step that may come by way of shared memory: that is slower if there are many.
inline constexpr int32_t kStagedMax = 32;

// The rows that a warp copies (shares.cuh). The bytes of the first come into registers and those of
// the second, with few rows in a call, into shared memory while their places are being found.
struct WarpRows {
  int32_t first = kNone;     // a miss; kNone: none, or not begun before
  int32_t second = kNone;    // likewise, in calls of one layer
  int32_t next;              // of the rest, or of all misses
  int32_t rest = 0;          // how many there are
  bool has_started = false;  // the first
  RowInFlight bytes;
};

// Only if that saves another round do two rows of a warp pay. `excess`: see Shares.
__device__ inline bool Stages(const IndexedSwapInArgs& a, int32_t excess) {
  return a.stage_bytes > 0 && excess <= kStagedMax;
}

// Where the warp stands in the row of those that copy the rest.
__device__ inline void TakeTurn(const IndexedSwapInArgs& a, const Shares& shares, int32_t turn,
                                WarpRows* rows) {
  rows->rest = shares.rest();
  rows->next = shares.Place(turn, a.copying_blocks - a.early_blocks, Stages(a, shares.excess()));
}

// Whether any of the rest is left for late blocks: what Shares would say, in a few instructions.
template <typename ResolverType>
__device__ inline bool ReachesLateBlocks(const IndexedSwapInArgs& a, const ResolverType& resolver) {
  const int32_t excess = resolver.missing() - a.early_blocks * WarpCount();
  if (excess <= 0 || !Stages(a, excess)) return excess > 0;
  const auto begun = static_cast<uint32_t>(min(resolver.MissingOfLane(), a.early_blocks));
  return excess > static_cast<int32_t>(__reduce_add_sync(kAllLanes, begun));
}

// After FindMissing(), which may have started the first, in an early block.
template <bool kAged, typename ResolverType>
__device__ inline void StartRows(const IndexedSwapInArgs& a, const LayerView& leader, int32_t turn,
                                 const ResolverType& resolver, WarpRows* rows) {
  const Shares shares(resolver.MissingOfLane(), a.early_blocks);
  const int32_t warps = WarpCount() * a.copying_blocks;
  rows->first = shares.First(turn);
  TakeTurn(a, shares, turn, rows);
  if (rows->next >= rows->rest) return;
  const int32_t m = shares.Rest(rows->next), slot = resolver.slot(m);
  const bool exists = slot < a.p.shape.slot_count;
  if (rows->first == kNone) {
    rows->first = m;
    rows->next += warps;
    rows->has_started = exists;
    if (exists) {
      rows->bytes.Load(ValuesAt<kAged>(leader, resolver.KeptOr(slot)), leader.layout.value_bytes);
    }
  } else if (Stages(a, shares.excess()) && exists) {
    rows->second = m;
    rows->next += warps;
    StageRow(resolver.Stage(a.stage_bytes), ValuesAt<kAged>(leader, resolver.KeptOr(slot)),
             leader.layout.value_bytes / 16);
  }
}

}  // namespace kvtier::cuda
