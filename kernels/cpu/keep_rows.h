// Newest rows that stay when they are backed up (kept_rows.h). Private to this folder.
#pragma once

#include <atomic>
#include <cstdint>

#include "kernels/kept_rows.h"
#include "kernels/params.h"

namespace kvtier::cpu {

// An owner, or the note of a kept row, is dropped if it still is what was seen: a newer one that
// another process wrote meanwhile stays.
inline bool DropOwner(int32_t* owner, int32_t seen) {
  return std::atomic_ref<int32_t>(*owner).compare_exchange_strong(seen, kNone);
}

// Drops what `kept` (KeptOf(), not null) notes of `slot`.
inline void DropKept(const GroupShape& shape, int32_t* kept, int32_t slot) {
  for (int32_t rank = 0; rank < shape.rows_per_request; ++rank) {
    if (std::atomic_ref<int32_t>(kept[rank]).load(std::memory_order_relaxed) == slot) {
      DropOwner(&kept[rank], slot);
    }
  }
}

// Where a copy of the backed row `slot` comes from, as plans say it: the first kept row that holds
// it, or the host pool. `kept` may be null.
inline int32_t KeptOr(const GroupShape& shape, int32_t* kept, int32_t region, int32_t slot,
                      Counts* counts) {
  for (int32_t rank = 0; kept != nullptr && rank < shape.rows_per_request; ++rank) {
    if (std::atomic_ref<int32_t>(kept[rank]).load(std::memory_order_relaxed) != slot) continue;
    ++(*counts)[Counter::kRowsKept];
    return FromHotRow(KeptRow(shape, region, rank));
  }
  return slot;
}

}  // namespace kvtier::cpu
