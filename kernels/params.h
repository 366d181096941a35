// The arguments of every kernel: plain structs of sizes and pointers.
//
// The same structs go to the sequential reference (reference/), to the CPU kernels
// (cpu/) and to the CUDA kernels, and mean the same there. Pointers are to memory the
// kernel can reach; they must stay valid until the call has completed. No kernel keeps
// or frees one. Optional pointers say so. "Region" is the hot-buffer part that one
// request owns.
#pragma once

#include <cstdint>

#include "kernels/counters.h"
#include "kernels/layout.h"

namespace kvtier {

// One layer of a group: its rows in the host pool and in the hot buffer.
struct LayerView {
  uint8_t* host = nullptr;  // StorageBytes(layout, slot_count) bytes, 16-byte aligned
  uint8_t* hot = nullptr;   // StorageBytes(layout, region_count * region_stride) bytes, ditto
  RowLayout layout;
};

// Which hot slots that are no hits a step's misses draw.
enum class EvictionPolicy : int32_t {
  kLru = 0,   // the oldest
  kAged = 1,  // those with the smallest scores (eviction.h), of equal ones the oldest
};

// Rows of a region behind its hot slots: one for each newest token and, where newest rows are kept
// (kept_rows.h), as many kept rows.
KVTIER_HD constexpr int32_t ReservedRows(int32_t rows_per_request, EvictionPolicy policy) {
  return policy == EvictionPolicy::kAged ? 2 * rows_per_request : rows_per_request;
}

// Sizes of one layer group. Checked when a cache is created.
struct GroupShape {
  int32_t top_k = 0;             // positions a row, 0..hot_size
  int32_t hot_size = 0;          // hot slots under LRU a region, 1..kHotSizeMax
  int32_t region_count = 0;      // >= 1; region_count * region_stride < 2^31
  int32_t region_stride = 0;     // RegionStride(hot_size, ReservedRows(...))
  int32_t rows_per_request = 1;  // rows of one request in one call (speculative decoding)
  int32_t block_size = 0;        // slots a block
  int32_t slot_count = 0;        // slots of the host pool's part: block_size * block_count
  int32_t max_blocks = 0;        // entries of one request's block table
  EvictionPolicy policy = EvictionPolicy::kLru;
};

// Words of a slot in a directory.
inline constexpr int32_t kDirectoryWords = 2;

// Ownership and order of the hot slots of every region.
struct GroupState {
  int32_t* owner = nullptr;  // [region_count, hot_size] slot owned by each hot slot, -1 empty
  int16_t* lru = nullptr;    // [region_count, hot_size] permutation of hot slots, oldest first
  // [region_count, RegionIndexLength(hot_size)] (region_index.h), or null: where owners are found
  // fast, for the kernels that keep one. Zeros mean that nothing is known: whoever writes an owner
  // other than -1 by hand zeroes the region's index.
  uint16_t* index = nullptr;
  uint8_t* score = nullptr;  // [region_count, hot_size] of each hot slot; kAged only, else null
  // [slot_count, kDirectoryWords] 1 + a hot row that may hold the slot's bytes on all layers, 0
  // none; or null. For the kernels that copy rows which another region of the call has from there
  // instead of from the host pool. A hint: any value is harmless as long as every owned hot row
  // holds its owner's bytes. Whoever writes an owner other than -1 by hand zeroes its slot's words;
  // so does who rewrites a slot's host row by other means than Backup() and keeps copies of it.
  int32_t* directory = nullptr;
  // [region_count, rows_per_request] the slot whose row each kept row (kept_rows.h) holds, -1 none;
  // kAged only. Null: no row is kept.
  int32_t* kept = nullptr;
};

// The scores of `region`'s hot slots, [hot_size]; null where the policy has none.
KVTIER_HD constexpr uint8_t* ScoresOf(const GroupShape& shape, const GroupState& state,
                                      int32_t region) {
  if (shape.policy != EvictionPolicy::kAged) return nullptr;
  return state.score + int64_t{region} * shape.hot_size;
}

// Which rows of the host pool hold their tenant's bytes. A row is backed when its
// backed_generation equals the generation of its block; assigning a block raises the
// block's generation, so all its rows become unbacked at once. Both or neither null;
// null: every row counts as backed.
struct RowTracking {
  const int32_t* block_generation = nullptr;  // [slot_count / block_size]
  int32_t* backed_generation = nullptr;       // [slot_count]
};

// The compact plan of a step: what followers copy. For row r, entries
// [r * top_k, r * top_k + counts[r]) are this step's misses in order of first
// appearance, each at the row where it appeared first; entries behind them are not written.
// A slot of -1 means "zero the hot row", a smaller one "copy the kept row that it names"
// (kept_rows.h); a hot row of -1 means "skip".
struct Plan {
  int32_t* slots = nullptr;     // [num_rows, top_k]
  int32_t* hot_rows = nullptr;  // [num_rows, top_k] absolute hot rows
  int32_t* counts = nullptr;    // [num_rows]
};

struct SwapInParams {
  GroupShape shape;
  GroupState state;
  RowTracking tracking;

  int32_t num_rows = 0;                       // rows of the arrays below
  const int32_t* num_real_rows = nullptr;     // [1]; null: num_rows. Rows at or past it are padding
  const int32_t* row_to_request = nullptr;    // [num_rows] region of each row, -1 padding
  const int32_t* topk = nullptr;              // [num_rows, top_k] positions or slots, < 0 none
  const int32_t* newest_slot = nullptr;       // [num_rows], -1 none; null: none anywhere
  const int32_t* block_table = nullptr;       // [region_count, max_blocks]; null: topk holds slots
  const int32_t* sequence_lengths = nullptr;  // [region_count], -1 unknown; null: unknown

  int32_t* hot_indices = nullptr;   // out [num_rows, top_k] absolute hot rows, -1 masked
  int32_t* miss_mask = nullptr;     // out [num_rows, top_k], may be null
  int32_t* valid_counts = nullptr;  // out [num_rows], may be null
  Plan plan;                        // out, all three or none

  const LayerView* layers = nullptr;  // the layers to copy in this call, may be none
  int32_t layer_count = 0;
  StatsBlock* stats = nullptr;  // may be null
};

// Follower layers: the copies of a plan on other layers of the group.
struct ReplayPlanParams {
  GroupShape shape;
  int32_t num_rows = 0;
  const int32_t* num_real_rows = nullptr;  // as above
  Plan plan;                               // in
  // Those of the step, for its directory; without one, or without both, all rows come from the host
  // pool. Before the next swap-in of the group's regions, or backup of their newest rows, the plan
  // must have been replayed on all layers that the swap-in did not copy.
  GroupState state;
  const int32_t* row_to_request = nullptr;  // [num_rows]
  const LayerView* layers = nullptr;
  int32_t layer_count = 0;
  StatsBlock* stats = nullptr;  // bytes_copied only
};

// Rows from device memory to the host pool, all given layers in one call. Newest rows go to the
// kept rows, too, where there are any.
struct BackupParams {
  GroupShape shape;
  GroupState state;
  RowTracking tracking;

  int32_t num_rows = 0;
  const int32_t* num_real_rows = nullptr;   // as above
  const int32_t* row_to_request = nullptr;  // [num_rows] region whose cached copies of the slot
                                            // are dropped; -1 none; null: none anywhere
  const int32_t* slots = nullptr;           // [num_rows] destination, -1 skipped
  // [num_rows] source row. Null: the newest row reserved for this row's rank among the
  // rows of its request (row_to_request >= 0 is then required of every row that counts).
  const int32_t* source_rows = nullptr;
  // Null: the source is the hot buffer of each layer. Else one tensor a layer, with its layout:
  // format, value_bytes and scale_bytes of the layer's, stride and pages of its own.
  const uint8_t* const* sources = nullptr;
  const RowLayout* source_layouts = nullptr;
  int32_t source_row_count = 0;  // rows of each source tensor; rows out of range are skipped

  const LayerView* layers = nullptr;
  int32_t layer_count = 0;
  StatsBlock* stats = nullptr;
};

// Drops every cached copy of the rows of some blocks, in all regions.
struct InvalidateParams {
  GroupShape shape;
  GroupState state;
  const int32_t* blocks = nullptr;  // [block_count] in any order
  int32_t block_count = 0;
  StatsBlock* stats = nullptr;
};

// Puts one region back to "empty": owner all -1, lru 0, 1, 2, ...
struct ResetRegionParams {
  GroupShape shape;
  GroupState state;
  int32_t region = 0;
};

}  // namespace kvtier
