// Newest rows that stay on the device when they are backed up.
//
// The row of a step's newest token lies in a reserved row, which the next token's overwrites. Most
// models ask for the token before in each step: a miss, of a row that was on the device just now.
// So under EvictionPolicy::kAged a region has a *kept row* for each reserved row, right behind
// them:
//
//   hot_size hot slots | rows_per_request newest rows | rows_per_request kept rows | padding
//
// A backup of a newest row copies it into the kept row of its rank, too, and notes the slot in
// GroupState::kept. A miss of a slot that is noted is a miss like any other, but is copied from the
// kept row instead of the host pool (Counter::kRowsKept). A plan says so in place of the slot:
//
//   plan.slots[i] = FromHotRow(KeptRow(shape, region, rank));   // < -1
//
// A note goes where an owner of its slot would: when the slot is rewritten (it is a newest slot of
// the region's next step, or another backup of the region writes it), when its block is assigned
// again, and when the region is reset. Of pairs of one backup each drops notes of its slot first
// and then leaves its own. A backup whose block was assigned again meanwhile leaves none.
//
// Kept rows are written by backups: those of newest rows must not run beside a swap-in of their
// regions, nor between it and the replays of its plan.
#pragma once

#include <cstdint>

#include "kernels/params.h"

namespace kvtier {

// The notes of `region`, [rows_per_request]; null where nothing is kept.
KVTIER_HD constexpr int32_t* KeptOf(const GroupShape& shape, const GroupState& state,
                                    int32_t region) {
  if (shape.policy != EvictionPolicy::kAged || state.kept == nullptr) return nullptr;
  return state.kept + int64_t{region} * shape.rows_per_request;
}

// The absolute hot row of the region's newest token of this rank, and the one that keeps it.
KVTIER_HD constexpr int32_t NewestRow(const GroupShape& shape, int32_t region, int32_t rank) {
  return region * shape.region_stride + shape.hot_size + rank;
}
KVTIER_HD constexpr int32_t KeptRow(const GroupShape& shape, int32_t region, int32_t rank) {
  return NewestRow(shape, region, shape.rows_per_request + rank);
}

// How a plan names a hot row to copy from. Its own inverse: HotRowIn(FromHotRow(row)) == row.
KVTIER_HD constexpr int32_t FromHotRow(int32_t hot_row) { return -2 - hot_row; }
KVTIER_HD constexpr int32_t HotRowIn(int32_t plan_slot) { return -2 - plan_slot; }
KVTIER_HD constexpr bool NamesHotRow(int32_t plan_slot) { return plan_slot < kNone; }

// What of a plan's slot may be believed: a host row, a hot row, or else kNone for zeros.
KVTIER_HD constexpr int32_t CheckedSource(int32_t plan_slot, int32_t slot_count,
                                          int32_t hot_row_count) {
  if (NamesHotRow(plan_slot)) return HotRowIn(plan_slot) < hot_row_count ? plan_slot : kNone;
  return plan_slot < slot_count ? plan_slot : kNone;
}

static_assert(HotRowIn(FromHotRow(0)) == 0 && NamesHotRow(FromHotRow(0)));

}  // namespace kvtier
