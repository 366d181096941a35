// From positions to slots, and from slots to where their bytes are. Private to this folder.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/counters.h"
#include "kernels/params.h"

namespace kvtier::cpu {

// What stands for the slot of a masked position: nothing that any hot slot has for an owner.
inline constexpr int32_t kMaskedSlot = -2;

inline constexpr int32_t kPositionLanes = 16;

// `slots` of positions `topk` [count] of a request: as ResolveSlot() of layout.h has them, but
// without its divisions for the usual block sizes, and kMaskedSlot for all that have none.
// `lanes_max` positions are looked at side by side at most, which changes nothing but the time it
// takes: for tests.
void ResolveSlots(const SwapInParams& p, int32_t region, const int32_t* topk, int32_t count,
                  int32_t* slots, int32_t lanes_max = kPositionLanes);

// Where the bytes of `slot` (>= 0) come from: itself, or kNone for zeros.
inline int32_t SourceOf(const SwapInParams& p, int32_t slot, Counts* counts) {
  if (slot >= p.shape.slot_count) {
    ++(*counts)[Counter::kUnsourced];
    return kNone;
  }
  if (p.tracking.backed_generation == nullptr) return slot;
  // Acquire: whoever published the generation wrote the bytes before.
  const int32_t backed =
      std::atomic_ref<int32_t>(p.tracking.backed_generation[slot]).load(std::memory_order_acquire);
  const int32_t block = slot / p.shape.block_size;
  const int32_t current =
      std::atomic_ref<int32_t>(const_cast<int32_t&>(p.tracking.block_generation[block]))
          .load(std::memory_order_acquire);
  if (backed == current) return slot;
  ++(*counts)[Counter::kUnbackedReads];
  return kNone;
}

}  // namespace kvtier::cpu
