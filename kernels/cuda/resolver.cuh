// One request's part of a swap-in, by one block: everything but the bytes of rows.
//
// Phases (a barrier between any two), for `positions` = rows of the request * top_k:
//   1. Clear     tables and bit arrays
//   2. Load      the LRU order is copied and checked; newest slots and positions go into a hash
//                table of slots, which keeps the first position that asks for each
//   3. Walk      every owner is looked up: a hit claims its slot's entry (the oldest claim stays)
//   4. Find      positions whose entry was claimed have their answer; of the others the first
//                one of each slot is a miss
//   5. Count     bits before each word: hits in the order, misses in order of first appearance
//      (with scores: ageing, and which evictables are drawn: resolver_scores.cuh)
//   6. Reorder   the new LRU order; the evictable hot slots that are drawn are listed
//   7. Place     the m-th miss takes the m-th evictable hot slot; the plan
//   8. Repeat    positions that repeat a miss get its answer (only if there are any)
// Bit i of word w is position or order index 32 w + i: a warp handles one word at a time, so
// ranks are a prefix and a popcount, and only words are scanned. A row's positions begin a new
// word. The same thread handles a position in all phases; between them its table entry lies in
// hot_indices, as -2 - entry.
//
// Example (top_k 8, hot_size 16; kernels/README.md has all of it): slots 200 and 700 go to
// entries a and b. The walk meets owner 200 at order index 1, so place[a] = 1 and bit 1 of the
// hits is set. Nobody owns 700: its position is bit 2 of the misses, the first one, and draws
// the oldest order index without a hit, 0, which is hot slot 3. b gets -1 - 3.
//
// Nothing here trusts the order: an entry that is no hot slot, or is one for the second time,
// leaves a bit in `bad` (found with a bitmap, marked by one thread, as it never happens in a
// healthy process) and is of no use to the miss that draws it.
#pragma once

#include "kernels/cuda/device.cuh"
#include "kernels/cuda/hash.cuh"
#include "kernels/cuda/keep_rows.cuh"
#include "kernels/cuda/plan.h"
#include "kernels/cuda/scan.cuh"
#include "kernels/cuda/stats.cuh"
#include "kernels/cuda/tables.cuh"

namespace kvtier::cuda {

class Resolver {
 public:
  // Pointers into the block's tables; the request's rows and their number are there already. The
  // slot table is 2^spread times as large as it must be.
  __device__ Resolver(const SwapInParams& p, const StepPlan& plan, const Tables& tables,
                      int32_t region, int32_t row_count, int32_t spread, BlockCounts counts)
      : p_(p),
        plan_(plan),
        t_(tables),
        table_(tables.keys, SlotTable::EntriesFor(row_count * p.shape.top_k + row_count) << spread),
        counts_(counts),
        region_(region),
        row_count_(row_count),
        top_k_(p.shape.top_k),
        hot_size_(p.shape.hot_size),
        base_(region * p.shape.region_stride),
        words_per_row_((p.shape.top_k + kWarpThreads - 1) / kWarpThreads),
        position_words_(row_count * words_per_row_),
        order_words_((p.shape.hot_size + kWarpThreads - 1) / kWarpThreads),
        owner_(p.state.owner + int64_t{region} * p.shape.hot_size),
        lru_(p.state.lru + int64_t{region} * p.shape.hot_size),
        score_(ScoresOf(p.shape, p.state, region)),
        kept_(KeptOf(p.shape, p.state, region)) {}

  // All threads of the block.
  __device__ void Run() {
    Clear();
    __syncthreads();
    const bool damaged = LoadOrder();
    InsertNewest();
    InsertPositions();
    has_bad_ = __syncthreads_or(damaged) != 0;
    if (has_bad_) MarkBadEntries();
    const bool claimed_twice = WalkOrder();
    if (__syncthreads_or(claimed_twice) != 0) KeepOldestClaims();
    const bool repeats_miss = FindMisses();
    CountBitsBefore(t_.hits, order_words_, t_.hits_before, t_.warp_sums);
    CountBitsBefore(t_.misses, position_words_, t_.misses_before, t_.warp_sums);
    if (score_ != nullptr) ChooseVictims();
    Reorder();
    const bool must_repeat = __syncthreads_or(repeats_miss) != 0;
    PlaceMisses();
    if (must_repeat) {
      __syncthreads();
      RepeatMisses();
    }
    __syncthreads();
    WriteCounts();
  }

 private:
  static constexpr int32_t kUnclaimed = INT32_MAX;  // in place[]: no hot slot (yet)
  static constexpr int32_t kUnseen = INT32_MAX;     // in first[]
  static constexpr uint16_t kUnusable = 0x8000;     // in evictable[]
  // Loads that a thread issues before it uses the first: their latencies overlap.
  static constexpr int32_t kLoads = 4;

  // A position as one lane sees it: lane l of the warp that handles word w.
  struct Position {
    int32_t rank;  // of its row among the request's
    int64_t at;    // in topk, hot_indices and miss_mask
    bool exists;   // the last word of a row may be wider than the row
  };
  __device__ Position PositionOf(int32_t word) const {
    const int32_t rank = word / words_per_row_;
    const int32_t column = (word - rank * words_per_row_) * kWarpThreads + Lane();
    return {rank, int64_t{t_.rows[rank]} * top_k_ + column, column < top_k_};
  }
  static __device__ int32_t PendingOf(int32_t entry) { return -2 - entry; }
  // Of the table, whatever has become of the output meanwhile: workers may write there.
  __device__ int32_t EntryOf(int32_t pending) const {
    return static_cast<int32_t>(0u - 2 - static_cast<uint32_t>(pending)) & (table_.entries() - 1);
  }

  __device__ bool IsBad(int32_t index) const {
    return has_bad_ && (t_.bad[index / kWarpThreads] >> (index % kWarpThreads) & 1) != 0;
  }

  __device__ void Clear();
  __device__ bool LoadOrder();
  __device__ bool KeepEntry(int32_t index, int16_t entry);
  __device__ void MarkBadEntries();
  __device__ int32_t SlotAt(int64_t at) const;
  __device__ void InsertNewest();
  __device__ void InsertPositions();
  __device__ void InsertWord(int32_t word, int32_t slot);
  __device__ bool WalkOrder();
  __device__ bool WalkWord(int32_t word, int32_t slot);
  __device__ void KeepOldestClaims();
  __device__ bool FindMisses();

  // Lanes whose evictables a word's misses may draw.
  struct Candidates {
    uint32_t below, at;  // the limit
  };
  // Whether misses draw this lane's evictable, and how many older ones they draw.
  struct Draw {
    bool is_drawn;
    int32_t before;
  };
  __device__ uint8_t ScoreAt(int32_t index) const;
  __device__ void AgeScores();
  __device__ void FindLimit(int32_t drawn);
  __device__ Candidates CandidatesOf(int32_t word) const;
  __device__ void ChooseVictims();
  __device__ Draw DrawByScore(int32_t word) const;

  __device__ void Reorder();
  __device__ int32_t SourceOf(int32_t slot, Counter* refusal) const;
  __device__ void PlaceMisses();
  __device__ void AppendToPlan(const Position& position, int32_t miss, int32_t slot,
                               int32_t hot_row);
  __device__ void RepeatMisses();
  __device__ void WriteCounts();

  const SwapInParams& p_;
  const StepPlan& plan_;
  const Tables t_;
  SlotTable table_;
  BlockCounts counts_;
  const int32_t region_, row_count_, top_k_, hot_size_;
  const int32_t base_;  // hot row of the region's hot slot 0
  const int32_t words_per_row_, position_words_, order_words_;
  int32_t* const owner_;
  int16_t* const lru_;
  uint8_t* const score_;  // null: the policy is kLru
  int32_t* const kept_;   // null: no row is kept
  bool has_bad_ = false;
};

}  // namespace kvtier::cuda

#include "kernels/cuda/resolver_lookup.cuh"
#include "kernels/cuda/resolver_place.cuh"
#include "kernels/cuda/resolver_scores.cuh"
