#include "kernels/cpu/row_slots.h"

#include <algorithm>
#include <bit>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace kvtier::cpu {
namespace {

// A block table, and what is too much for it.
struct BlockTable {
  const int32_t* blocks;
  uint32_t end;        // of positions; negative ones are beyond every end once they are unsigned
  uint32_t block_end;  // of blocks whose slots are int32
  int32_t shift;       // log2 of the block size
};

[[gnu::always_inline]] inline void ResolveOneByOne(const BlockTable& table, int32_t shift,
                                                   const int32_t* topk, int32_t count,
                                                   int32_t* slots) {
  const uint32_t offset_mask = (uint32_t{1} << shift) - 1;
  for (int32_t i = 0; i < count; ++i) {
    const auto position = static_cast<uint32_t>(topk[i]);
    const auto block =
        static_cast<uint32_t>(position < table.end ? table.blocks[position >> shift] : kNone);
    const uint32_t slot = (block << shift) | (position & offset_mask);
    slots[i] = block < table.block_end ? static_cast<int32_t>(slot) : kMaskedSlot;
  }
}

#if defined(__x86_64__)
[[gnu::target("avx512f")]] void ResolveSixteens(const BlockTable& table, const int32_t* topk,
                                                int32_t count, int32_t* slots) {
  const __m512i end = _mm512_set1_epi32(static_cast<int32_t>(table.end));
  const __m512i block_end = _mm512_set1_epi32(static_cast<int32_t>(table.block_end));
  const __m512i offset_mask = _mm512_set1_epi32((1 << table.shift) - 1);
  const __m512i nothing = _mm512_set1_epi32(kNone), masked = _mm512_set1_epi32(kMaskedSlot);
  const __m128i shift = _mm_cvtsi32_si128(table.shift);
  for (int32_t i = 0; i < count; i += kPositionLanes) {
    const auto lanes = static_cast<__mmask16>((1u << std::min(count - i, kPositionLanes)) - 1);
    const __m512i position = _mm512_maskz_loadu_epi32(lanes, topk + i);
    const __mmask16 inside = _mm512_mask_cmplt_epu32_mask(lanes, position, end);
    const __m512i block = _mm512_mask_i32gather_epi32(
        nothing, inside, _mm512_maskz_srl_epi32(inside, position, shift), table.blocks, 4);
    const __mmask16 found = _mm512_cmplt_epu32_mask(block, block_end);
    const __m512i slot =
        _mm512_mask_or_epi32(masked, found, _mm512_maskz_sll_epi32(found, block, shift),
                             _mm512_and_si512(position, offset_mask));
    _mm512_mask_storeu_epi32(slots + i, lanes, slot);
  }
}
#endif

}  // namespace

void ResolveSlots(const SwapInParams& p, int32_t region, const int32_t* topk, int32_t count,
                  int32_t* slots, int32_t lanes_max) {
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
  const BlockTable table = {.blocks = blocks,
                            .end = static_cast<uint32_t>(std::min<int64_t>(
                                {table_end, length < 0 ? table_end : length, int64_t{1} << 31})),
                            .block_end = (uint32_t{1} << 31) >> shift,
                            .shift = shift};
#if defined(__x86_64__)
  if (lanes_max >= kPositionLanes && __builtin_cpu_supports("avx512f")) {
    return ResolveSixteens(table, topk, count, slots);
  }
#endif
  if (shift == 6) return ResolveOneByOne(table, 6, topk, count, slots);  // a cheaper shift
  ResolveOneByOne(table, shift, topk, count, slots);
}

}  // namespace kvtier::cpu
