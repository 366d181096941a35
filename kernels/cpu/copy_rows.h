// Moving the bytes of rows. Private to this folder.
#pragma once

#include <cstdint>

#include "kernels/cpu/executor.h"
#include "kernels/cpu/workspace.h"
#include "kernels/params.h"

namespace kvtier::cpu {

// One row from one place to another. The layouts have the same format, value_bytes and
// scale_bytes; strides and pages may differ.
void CopyRow(uint8_t* to, const RowLayout& to_layout, int32_t to_row, const uint8_t* from,
             const RowLayout& from_layout, int32_t from_row);

// Rows of one request that are prefetched: no more than leaves room in a second-level cache.
inline constexpr int32_t kPrefetchBytesMax = 256 << 10;

// Has what will be read of a missing slot (of those in the host pool) brought to the second-level
// cache: its generation and, while there are `bytes_left`, its values in the first layer, which is
// copied first. Returns how many bytes of values. (Inlined, since gcc takes a function that does
// nothing but prefetch for one without effect, and calls it nowhere.)
[[gnu::always_inline]] inline int32_t PrefetchMiss(const SwapInParams& p, int32_t slot,
                                                   int32_t bytes_left) {
  constexpr uintptr_t kLineBytes = 64;
  if (p.tracking.backed_generation != nullptr) {
    __builtin_prefetch(p.tracking.backed_generation + slot);
  }
  if (bytes_left <= 0) return 0;
  const LayerView& layer = p.layers[0];
  const auto begin = reinterpret_cast<uintptr_t>(layer.host) + ValueOffset(layer.layout, slot);
  const uintptr_t end = begin + layer.layout.value_bytes;
  for (uintptr_t line = begin / kLineBytes * kLineBytes; line < end; line += kLineBytes) {
    __builtin_prefetch(reinterpret_cast<const void*>(line), 0, 2);
  }
  return layer.layout.value_bytes;
}

// All lists of `call` on all layers, in parallel: host rows, or kept rows, to hot rows. No two
// entries may have the same hot row. Returns the bytes that came from the host pool.
int64_t CopyLists(const LayerView* layers, int32_t layer_count, const CallScratch& call,
                  Executor& executor);

// Into how many parts to cut `items` equal pieces of work so that every thread has some.
int32_t PartsPerItem(int64_t items, const Executor& executor);

}  // namespace kvtier::cpu
