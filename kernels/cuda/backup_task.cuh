// What a backup does for each of its rows: found by one warp a row.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/stats.cuh"
#include "kernels/kept_rows.h"

namespace kvtier::cuda {

// Words that a lane loads before it looks at the first.
inline constexpr int32_t kWordsInFlight = 4;

struct BackupArgs {
  GroupShape shape;
  int32_t* owner;
  int32_t* directory;  // null: none
  int32_t* kept;       // what kept rows hold, [region_count, rows_per_request]; null: no such rows
  bool keeps;          // newest rows go to them, too
  RowTracking tracking;
  int32_t num_rows;
  const int32_t* num_real_rows;
  const int32_t* row_to_request;
  const int32_t* slots;
  const int32_t* source_rows;
  int32_t source_row_end;
  StatsBlock* stats;
  int64_t bytes_per_row;  // over all layers of the call

  // This launch: rows from first_row on, so many a block. A team of warps copies a row.
  int32_t first_row;
  int32_t rows_per_block;
  int32_t team_warps;  // a power of two
  bool starts_rows;    // it copies the first layers of its rows
  bool finishes_rows;  // and the last
};

struct BackupLayer {
  const uint8_t* from;
  uint8_t* to;
  RowLayout from_layout, to_layout;
};

template <int32_t kLayersMax>
struct BackupLayers {
  int32_t count;
  BackupLayer layers[kLayersMax];
};

// What is to be done for a row.
struct RowTask {
  int32_t slot = kNone;    // kNone: the row doesn't count
  int32_t source = kNone;  // kNone: a later row writes the slot
  int32_t region = kNone;  // where copies are dropped, kNone: nowhere
  int32_t kept = kNone;    // the kept row that newest row `newest` goes to as well, kNone: none
  int32_t newest = kNone;
  bool is_noted = false;  // and is found there: no later row of the region writes the slot
};

// Calls function(row, word) for the words of `rows`[first, end), 32 side by side, until it returns
// true. All lanes of a warp; `row` is the lane's, and past the end for lanes that have none.
// kFewRows: the code is short instead of fast, as most of the time goes into fetching it.
template <bool kFewRows, typename Function>
__device__ inline void ForEachWord(const int32_t* rows, int32_t first, int32_t end,
                                   const Function& function) {
  if constexpr (kFewRows) {
#pragma unroll 1
    for (int32_t start = first; start < end; start += kWarpThreads) {
      const int32_t row = start + Lane();
      if (function(start, row < end ? rows[row] : kNone)) return;
    }
  } else {
    for (int32_t start = first; start < end; start += kWordsInFlight * kWarpThreads) {
      int32_t words[kWordsInFlight];
#pragma unroll
      for (int32_t k = 0; k < kWordsInFlight; ++k) {
        const int32_t row = start + k * kWarpThreads + Lane();
        words[k] = row < end ? rows[row] : kNone;
      }
#pragma unroll
      for (int32_t k = 0; k < kWordsInFlight; ++k) {
        if (function(start + k * kWarpThreads, words[k])) return;
      }
    }
  }
}

// Rows in [0, row) that name `region` (>= 0).
template <bool kFewRows>
__device__ inline int32_t RankOf(const BackupArgs& a, int32_t row, int32_t region) {
  int32_t rank = 0;
  ForEachWord<kFewRows>(a.row_to_request, 0, row, [&](int32_t, int32_t other) {
    rank += __popc(__ballot_sync(kAllLanes, other == region));
    return false;
  });
  return rank;
}

enum class Verdict { kCopied, kSkipped, kRejected };

// Which row of the sources `row` is copied from, into which slot. All lanes of a warp.
template <bool kFewRows>
__device__ inline Verdict FindSource(const BackupArgs& a, int32_t row, RowTask* task) {
  const int32_t slot = a.slots[row];
  const int32_t region = a.row_to_request == nullptr ? kNone : a.row_to_request[row];
  int32_t source = kNone;
  bool is_rejected = region < kNone || region >= a.shape.region_count;
  if (a.source_rows != nullptr) {
    source = a.source_rows[row];
  } else if (region == kNone) {
    return Verdict::kSkipped;
  } else if (!is_rejected) {
    const int32_t rank = RankOf<kFewRows>(a, row, region);
    is_rejected = rank >= a.shape.rows_per_request;
    source = NewestRow(a.shape, region, rank);
  }
  if (is_rejected) return Verdict::kRejected;
  if (slot < 0 || slot >= a.shape.slot_count || source < 0 || source >= a.source_row_end) {
    return Verdict::kSkipped;
  }
  task->slot = slot;
  task->source = source;
  task->region = region;
  if (a.keeps) {
    task->newest = source;
    task->kept = source + a.shape.rows_per_request;
  }
  return Verdict::kCopied;
}

// Whether a row in [first, end) writes `slot`, too; of `region`, unless that is kNone. All lanes of
// a warp.
template <bool kFewRows>
__device__ inline bool IsWrittenAgain(const BackupArgs& a, int32_t slot, int32_t region,
                                      int32_t first, int32_t end) {
  bool found = false;
  ForEachWord<kFewRows>(a.slots, first, end, [&](int32_t row, int32_t other) {
    uint32_t same = __ballot_sync(kAllLanes, other == slot);
    for (; same != 0 && !found; same &= same - 1) {
      RowTask task;
      const int32_t later = row + __ffs(static_cast<int32_t>(same)) - 1;
      found = FindSource<kFewRows>(a, later, &task) == Verdict::kCopied &&
              (region == kNone || task.region == region);
    }
    return found;
  });
  return found;
}

// The task of `row`; [row + 1, end) are the rows of the launch behind it. A row past the end has
// none. All lanes of a warp.
template <bool kFewRows>
__device__ inline RowTask FindTask(const BackupArgs& a, int32_t row, int32_t end,
                                   BlockCounts* counts) {
  RowTask task;
  const Verdict verdict = FindSource<kFewRows>(a, row, &task);
  if (row >= end) return RowTask();
  if (Lane() == 0 && verdict != Verdict::kSkipped) {
    counts->Add(verdict == Verdict::kCopied ? Counter::kBackedUpRows : Counter::kRejectedRows, 1);
  }
  task.is_noted = task.kept >= 0;
  if (task.slot < 0 || !IsWrittenAgain<kFewRows>(a, task.slot, kNone, row + 1, end)) return task;
  task.source = kNone;
  task.is_noted &= !IsWrittenAgain<kFewRows>(a, task.slot, task.region, row + 1, end);
  return task;
}

}  // namespace kvtier::cuda
