// The memory of a block that resolves a request: which arrays, how long, and where.
//
// Bit arrays, lists of rows and sums always lie in shared memory (at most 50 KiB). The order's
// copy, the evictable list and the slot table do if the GPU has room for them; else they lie in
// the workspace, one piece a unit (workspace.h). The same code runs on both.
#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/hash.cuh"
#include "kernels/cuda/workspace.h"
#include "kernels/params.h"

namespace kvtier::cuda {

// Lengths for up to `rows` rows of one request.
struct TableSizes {
  int32_t rows;
  int32_t order_words;     // bits: order indices
  int32_t position_words;  // bits: positions
  int32_t evictables;      // hot slots that misses may draw
  int32_t entries;         // of the slot table
  int32_t spread;          // it is 2^spread times as large as it must be
  int32_t hot_size;
  bool has_scores;
};

inline constexpr int32_t kScoreCount = 256;

inline TableSizes MakeTableSizes(const GroupShape& shape, int32_t rows, int32_t spread) {
  const int32_t positions = rows * shape.top_k;
  TableSizes sizes;
  sizes.rows = rows;
  sizes.order_words = (shape.hot_size + 31) / 32;
  sizes.position_words = rows * ((shape.top_k + 31) / 32);
  sizes.evictables = std::min(positions, shape.hot_size);
  sizes.entries = SlotTable::EntriesFor(positions + rows) << spread;
  sizes.spread = spread;
  sizes.hot_size = shape.hot_size;
  sizes.has_scores = shape.policy == EvictionPolicy::kAged;
  return sizes;
}

struct Tables {
  // In shared memory.
  uint32_t* hits;          // [order_words] bit: the owner at this order index is asked for
  uint32_t* bad;           // [order_words] bit: this order entry is corrupt; only if any is
  int32_t* hits_before;    // [order_words + 1]
  uint32_t* misses;        // [position_words] bit: this position is a miss
  int32_t* misses_before;  // [position_words + 1]
  int32_t* rows;           // [rows] batch rows of the request
  int32_t* valid;          // [rows] outputs of the row that are no -1
  int32_t* warp_sums;      // [32]
  int32_t* counts;         // [kCounterCount]
  int32_t* word;           // [1]
  // Only where hot slots have scores.
  int32_t* with_score;  // [kScoreCount] evictables that have this score
  int32_t* limit;       // [2] the score up to which they are drawn, and how many that have it
  int32_t* victims;     // [order_words + 1] before the word: below the limit << 16 | at it
  // There or in the workspace.
  int32_t* keys;        // [entries] slots
  int32_t* first;       // [entries] first position that asks for it; newest tokens: rank - rows
  int32_t* place;       // [entries] order index of the hit; -1 - hot slot of a placed miss
  int16_t* order;       // [hot_size] the LRU order before the step
  uint16_t* evictable;  // [evictables] hot slots, oldest first
};

// Bytes of the arrays above; the second part is a multiple of 16.
struct TableBytes {
  int64_t small;  // always shared
  int64_t large;
};

constexpr int64_t RoundUpTo16(int64_t bytes) { return (bytes + 15) / 16 * 16; }

inline TableBytes MakeTableBytes(const TableSizes& s) {
  const int64_t of_scores = s.has_scores ? kScoreCount + 2 + int64_t{s.order_words} + 1 : 0;
  const int64_t words = 3 * int64_t{s.order_words} + 1 + 2 * int64_t{s.position_words} + 1 +
                        2 * int64_t{s.rows} + 32 + kCounterCount + 1 + of_scores;
  const int64_t large =
      RoundUpTo16(3 * int64_t{s.entries} * 4 + 2 * int64_t{s.hot_size} + 2 * int64_t{s.evictables});
  return {RoundUpTo16(words * 4), large};
}

// Cuts both parts into arrays.
__device__ inline Tables CutTables(const TableSizes& s, uint8_t* small, uint8_t* large) {
  Tables t;
  t.hits = reinterpret_cast<uint32_t*>(small);
  t.bad = t.hits + s.order_words;
  t.hits_before = reinterpret_cast<int32_t*>(t.bad + s.order_words);
  t.misses = reinterpret_cast<uint32_t*>(t.hits_before + s.order_words + 1);
  t.misses_before = reinterpret_cast<int32_t*>(t.misses + s.position_words);
  t.rows = t.misses_before + s.position_words + 1;
  t.valid = t.rows + s.rows;
  t.warp_sums = t.valid + s.rows;
  t.counts = t.warp_sums + 32;
  t.word = t.counts + kCounterCount;
  t.with_score = t.word + 1;
  t.limit = t.with_score + kScoreCount;
  t.victims = t.limit + 2;
  t.keys = reinterpret_cast<int32_t*>(large);
  t.first = t.keys + s.entries;
  t.place = t.first + s.entries;
  t.order = reinterpret_cast<int16_t*>(t.place + s.entries);
  t.evictable = reinterpret_cast<uint16_t*>(t.order + s.hot_size);
  return t;
}

}  // namespace kvtier::cuda
