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

// After FindMissing(), which may have started the first.
template <bool kAged, typename ResolverType>
__device__ inline void StartRows(const IndexedSwapInArgs& a, const LayerView& leader, int32_t turn,
                                 const ResolverType& resolver, WarpRows* rows) {
  const Shares shares(resolver.MissingOfLane(), a.early_blocks);
  const int32_t warps = WarpCount() * a.copying_blocks;
  // Only where that saves another round.
  const bool stages = a.stage_bytes > 0 && shares.excess() <= kStagedMax;
  rows->first = shares.First(turn);
  rows->rest = shares.rest();
  rows->next = shares.Place(turn, a.copying_blocks - a.early_blocks, stages);
  if (turn >= a.early_blocks || rows->next >= rows->rest) return;
  const int32_t m = shares.Rest(rows->next), slot = resolver.slot(m);
  const bool exists = slot < a.p.shape.slot_count;
  if (rows->first == kNone) {
    rows->first = m;
    rows->next += warps;
    rows->has_started = exists;
    if (exists) {
      rows->bytes.Load(ValuesAt<kAged>(leader, resolver.KeptOr(slot)), leader.layout.value_bytes);
    }
  } else if (stages && exists) {
    rows->second = m;
    rows->next += warps;
    StageRow(resolver.Stage(a.stage_bytes), ValuesAt<kAged>(leader, resolver.KeptOr(slot)),
             leader.layout.value_bytes / 16);
  }
}

}  // namespace kvtier::cuda
