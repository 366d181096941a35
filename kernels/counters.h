// The device counters of one layer group, and how they are written and read.
//
// hits + misses           = distinct lookups of the rows of a request
// misses                  = rows_copied + unsourced + unbacked_reads + unplaced
// hits + misses + newest + invalid + duplicates = positions of all real rows
#pragma once

#include <cstdint>

#include "kernels/layout.h"

namespace kvtier {

enum class Counter : int32_t {
  kSteps = 0,          // swap-in calls with at least one real row
  kHits,               // lookups found in the hot buffer, distinct within a request's rows
  kMisses,             // lookups not found, distinct within a request's rows
  kNewest,             // positions that named a newest slot of their request
  kInvalid,            // positions that were masked (-1, past the sequence, no block)
  kDuplicates,         // positions that repeated a lookup of the same request and call
  kUnsourced,          // misses at or past the end of the host pool: zeroed
  kUnbackedReads,      // misses on a row that was assigned but never backed up: zeroed
  kUnplaced,           // misses that drew no hot slot (corrupt LRU entry, union too large)
  kRowsCopied,         // rows whose bytes were placed, counted once a layer group
  kBytesCopied,        // bytes of those that came from the host pool, over all layers
  kBackedUpRows,       // rows written to the host pool
  kBackedUpBytes,      // bytes of those, over all layers
  kStateRepairs,       // corrupt LRU entries that a step met and refused
  kRejectedRows,       // batch rows whose request index was out of range
  kInvalidatedCopies,  // hot rows dropped because their block was assigned again
  kEvictions,          // owned hot slots given to another row
  kRowsShared,         // rows of rows_copied whose bytes came from another region's hot row
  kRowsKept,           // rows of rows_copied whose bytes came from a kept row (kept_rows.h)
};
inline constexpr int32_t kCounterCount = 19;

// What counter `c` weighs in StatsBlock::check.
KVTIER_HD constexpr uint32_t CountWeight(int32_t c) {
  uint32_t weight = static_cast<uint32_t>(c + 1) * 0x9e3779b1u;
  weight ^= weight >> 15;
  return weight * 0x85ebca6bu | 1;
}

// Shared memory that a worker's in-process kernels and the daemon both write. Each addition of
// counts also adds their weighted sum to `check`, so that a reader knows whether it has seen all
// of every addition: then, and as good as only then, check is the weighted sum of the counts
// modulo 2^32 (AddCounts and ReadCounts in stats_block.h).
struct alignas(64) StatsBlock {
  int64_t check = 0;
  int64_t counts[kCounterCount] = {};
};
static_assert(sizeof(StatsBlock) == 192, "the worker and the daemon must agree");

// What a worker has written may be any number: a sum of such wraps, as additions to memory do.
KVTIER_HD constexpr int64_t WrappingSum(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) + static_cast<uint64_t>(b));
}
KVTIER_HD constexpr int64_t WrappingDifference(int64_t a, int64_t b) {
  return static_cast<int64_t>(static_cast<uint64_t>(a) - static_cast<uint64_t>(b));
}

// One call's counts before they are added to a StatsBlock.
struct Counts {
  int64_t values[kCounterCount] = {};
  int64_t& operator[](Counter c) { return values[static_cast<int32_t>(c)]; }
  int64_t operator[](Counter c) const { return values[static_cast<int32_t>(c)]; }
  Counts& operator+=(const Counts& other) {
    for (int32_t c = 0; c < kCounterCount; ++c) values[c] = WrappingSum(values[c], other.values[c]);
    return *this;
  }
};

}  // namespace kvtier
