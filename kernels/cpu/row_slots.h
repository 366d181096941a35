// From positions to slots, and from slots to where their bytes are. Private to this folder.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "kernels/counters.h"
#include "kernels/params.h"

namespace kvtier::cpu {

// What stands for the slot of a masked position: nothing that any hot slot has for an owner.
inline constexpr int32_t kMaskedSlot = -2;

// `slots` of positions `topk` [count] of a request: as ResolveSlot() of layout.h has them, but
// without its divisions for the usual block sizes, and kMaskedSlot for all that have none.
inline void ResolveSlots(const SwapInParams& p, int32_t region, const int32_t* topk, int32_t count,
                         int32_t* slots) {
  const int32_t max_blocks = p.shape.max_blocks;
  if (p.block_table == nullptr) {
    for (int32_t i = 0; i < count; ++i) slots[i] = topk[i] < 0 ? kMaskedSlot : topk[i];
    return;
  }
  const int32_t* const blocks = p.block_table + int64_t{region} * max_blocks;
  const int32_t length = p.sequence_lengths == nullptr ? kNone : p.sequence_lengths[region];
  const auto block_size = static_cast<uint32_t>(p.shape.block_size);
  if (!std::has_single_bit(block_size)) {
    for (int32_t i = 0; i < count; ++i) {
      const int32_t slot = ResolveSlot(blocks, max_blocks, p.shape.block_size, length, topk[i]);
      slots[i] = slot < 0 ? kMaskedSlot : slot;
    }
    return;
  }
  const int32_t shift = std::countr_zero(block_size);
  const int64_t table_end = int64_t{max_blocks} << shift;
  // Negative positions are beyond every end once they are unsigned.
  const auto end = static_cast<uint32_t>(
      std::min<int64_t>({table_end, length < 0 ? table_end : length, int64_t{1} << 31}));
  const uint32_t block_end = (uint32_t{1} << 31) >> shift;  // of those whose slots are int32
  const auto resolve = [=](int32_t shift_or_constant) {
    for (int32_t i = 0; i < count; ++i) {
      const auto position = static_cast<uint32_t>(topk[i]);
      const auto block =
          static_cast<uint32_t>(position < end ? blocks[position >> shift_or_constant] : kNone);
      const uint32_t slot = (block << shift_or_constant) | (position & (block_size - 1));
      slots[i] = block < block_end ? static_cast<int32_t>(slot) : kMaskedSlot;
    }
  };
  if (shift == 6) return resolve(6);  // shifts by a constant are cheaper
  resolve(shift);
}

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
