// Scratch memory of the CPU kernels. Private to this folder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/counters.h"
#include "kernels/cpu/lookup_table.h"
#include "kernels/cpu/owner_index.h"
#include "kernels/cpu/split_order.h"
#include "kernels/params.h"

namespace kvtier::cpu {

// Makes room for `count` elements and never gives any back.
template <typename T>
void Grow(std::vector<T>& v, int64_t count) {
  if (static_cast<int64_t>(v.size()) < count) v.resize(count);
}

inline int32_t RealRowCount(const int32_t* num_real_rows, int32_t num_rows) {
  return num_real_rows == nullptr ? num_rows : std::clamp(*num_real_rows, 0, num_rows);
}

// One entry of a plan, checked: `hot_row` is inside the hot buffer, `slot` inside the host pool, or
// -1 for zeros, or less for a row inside the hot buffer (kept_rows.h).
struct RowCopy {
  int32_t slot;
  int32_t hot_row;
};

struct Lookup {
  int32_t slot;
  int32_t column;  // of its first appearance; in all rows of the request where the index is used
};

// What one thread needs to work on one request. "Id" numbers what positions ask for: 0 masked,
// 1 ... rows newest tokens, from then on lookups in order of first appearance.
struct Workspace {
  // Room for any request of this shape. Every thread's workspace is made ready by the caller, so
  // that none allocates on the day that it gets its first large request.
  void Reserve(const GroupShape& shape) {
    const int64_t ids = int64_t{shape.rows_per_request} * (int64_t{shape.top_k} + 1) + 1;
    table.Reserve(static_cast<int32_t>(std::min<int64_t>(ids, INT32_MAX)));
    Grow(this->ids, ids);
    Grow(answers, ids);
    Grow(lookups, ids);
    Grow(misses, ids);
    Grow(id_ends, shape.rows_per_request);
    Grow(order, shape.hot_size);
    Grow(evictable, shape.hot_size);
    if (shape.policy == EvictionPolicy::kAged) Grow(others, shape.hot_size + 1);
    Grow(hits, shape.hot_size);
    Grow(met, shape.hot_size);
    Grow(unanswered, ids + OwnerIndex::kMatchLanes);
    Grow(miss_ids, ids);
    for (std::vector<int32_t>* of_rows : {&newest, &dropped, &valid}) {
      Grow(*of_rows, shape.rows_per_request);
    }
    notes.Reserve();
    for (std::vector<uint16_t>* list : {&entries, &hit_slots, &other_slots}) {
      Grow(*list, shape.hot_size + kSplitSlack);
    }
    if (shape.policy == EvictionPolicy::kAged) Grow(scores, shape.hot_size);
  }

  Counts counts;

  LookupTable table;                // slot -> id
  std::vector<int32_t> ids;         // [positions] what each position asks for
  std::vector<int32_t> answers;     // [id] hot slot, in the end hot row; -1 none
  std::vector<Lookup> lookups;      // [id] of lookups
  std::vector<int32_t> id_ends;     // [row of the request] one past the last id that began there
  std::vector<int32_t> misses;      // ids
  std::vector<uint32_t> order;      // [hot_size] the LRU order, corrupt entries marked
  std::vector<uint32_t> evictable;  // entries of `order`, oldest first
  std::vector<uint32_t> others;     // evictables that are not drawn, where there are scores
  std::vector<uint32_t> hits;       // entries of `order`, oldest first
  std::vector<uint16_t> met;        // [hot slot] stamp of the last order that had it
  uint16_t met_stamp = 0;

  // By the index of a region, beside those above:
  HotSlotNotes notes;
  std::vector<int32_t> unanswered;    // positions (of all rows) that are no hits
  std::vector<int32_t> newest;        // [row of the request] slot
  std::vector<int32_t> dropped;       // hot slots that had a newest slot
  std::vector<int32_t> valid;         // [row of the request]
  std::vector<int32_t> miss_ids;      // [position that is no hit]
  std::vector<uint16_t> entries;      // [hot_size] the order as it was read
  std::vector<uint16_t> hit_slots;    // oldest first
  std::vector<uint16_t> other_slots;  // oldest first, in the end what misses draw in front
  std::vector<uint8_t> scores;        // [other slot]
};

// The accepted rows of a call by request. Request i has rows[starts[i]] ... rows[starts[i+1]-1].
struct RowGroups {
  static constexpr int32_t kNoRequest = -1;  // in request_of_row
  static constexpr int32_t kRejected = -2;

  int32_t request_count = 0;
  std::vector<int32_t> regions;         // [request]
  std::vector<int32_t> starts;          // [request + 1]
  std::vector<int32_t> rows;            // in batch order within a request
  std::vector<int32_t> request_of_row;  // [row] or one of the two above
  std::vector<int32_t> ranks;           // [row] among the rows of its request

  std::vector<uint32_t> stamps;            // [region] of the last call that met it
  std::vector<int32_t> request_of_region;  // [region] while its stamp is this call's
  uint32_t stamp = 0;
};

struct BackupJob {
  int32_t slot;
  int32_t source_row;
  int32_t generation;  // of the slot's block, before the copy
  bool superseded;     // a later row of the call writes the same slot
  int32_t kept;        // the kept row that it goes to as well, as an index of GroupState::kept; -1
};

// What one call needs, whatever the number of threads.
struct CallScratch {
  RowGroups groups;

  // List i is copies[copy_starts[i]], ..., copy_counts[i] of them.
  int32_t list_count = 0;
  std::vector<RowCopy> copies;
  std::vector<int64_t> copy_starts;
  std::vector<int32_t> copy_counts;

  LookupTable table;
  std::vector<BackupJob> backups;
  std::vector<int32_t> backup_slots;  // [row] -1 none
  std::vector<int32_t> blocks;
};

}  // namespace kvtier::cpu
