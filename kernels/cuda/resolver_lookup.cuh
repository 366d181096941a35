// Phases 1 to 4 of Resolver: what is asked for, what is there, what is missing.
#pragma once

#include "kernels/cuda/resolver.cuh"
#include "kernels/eviction.h"

namespace kvtier::cuda {

__device__ inline void Resolver::Clear() {
  for (int32_t e = Thread(); e < table_.entries(); e += ThreadCount()) {
    table_.Clear(e);
    t_.first[e] = kUnseen;
    t_.place[e] = kUnclaimed;
  }
  for (int32_t w = Thread(); w < order_words_; w += ThreadCount()) t_.hits[w] = 0;
  if (score_ != nullptr) {
    for (int32_t s = Thread(); s < kScoreCount; s += ThreadCount()) t_.with_score[s] = 0;
    if (Thread() < 2) t_.limit[Thread()] = 0;
  }
  for (int32_t rank = Thread(); rank < row_count_; rank += ThreadCount()) t_.valid[rank] = 0;
}

// Copies the order; every entry is read once, and only the copy is used from then on. True if
// this thread met an entry that is no hot slot, or is one that another thread has met.
__device__ inline bool Resolver::LoadOrder() {
  bool damaged = false;
  for (int32_t start = Thread(); start < hot_size_; start += kLoads * ThreadCount()) {
    int16_t entries[kLoads];
#pragma unroll
    for (int32_t k = 0; k < kLoads; ++k) {
      const int32_t i = start + k * ThreadCount();
      if (i < hot_size_) entries[k] = LoadRelaxed(lru_ + i);
    }
#pragma unroll
    for (int32_t k = 0; k < kLoads; ++k) {
      const int32_t i = start + k * ThreadCount();
      if (i < hot_size_) damaged |= KeepEntry(i, entries[k]);
    }
  }
  return damaged;
}

// Uses the hits as a bitmap of hot slots that were met.
__device__ inline bool Resolver::KeepEntry(int32_t index, int16_t entry) {
  t_.order[index] = entry;
  const auto hot_slot = static_cast<uint16_t>(entry);  // a negative one is 32768 or more
  if (hot_slot >= hot_size_) return true;
  const uint32_t bit = 1u << (hot_slot % kWarpThreads);
  return (atomicOr(t_.hits + hot_slot / kWarpThreads, bit) & bit) != 0;
}

// The order as the sequential contract reads it: of the entries that name a hot slot the oldest
// is good. All threads; one of them works.
__device__ inline void Resolver::MarkBadEntries() {
  __syncthreads();
  if (Thread() == 0) {
    uint32_t* met = t_.hits;
    for (int32_t w = 0; w < order_words_; ++w) met[w] = t_.bad[w] = 0;
    for (int32_t i = 0; i < hot_size_; ++i) {
      const auto hot_slot = static_cast<uint16_t>(t_.order[i]);
      const uint32_t bit = 1u << (hot_slot % kWarpThreads);
      if (hot_slot >= hot_size_ || (met[hot_slot / kWarpThreads] & bit) != 0) {
        t_.bad[i / kWarpThreads] |= 1u << (i % kWarpThreads);
      } else {
        met[hot_slot / kWarpThreads] |= bit;
      }
    }
  }
  __syncthreads();
}

__device__ inline int32_t Resolver::SlotAt(int64_t at) const {
  const int32_t value = p_.topk[at];
  if (p_.block_table == nullptr) return value < 0 ? kNone : value;
  const int32_t length = p_.sequence_lengths == nullptr ? kNone : p_.sequence_lengths[region_];
  return ResolveSlot(p_.block_table + int64_t{region_} * p_.shape.max_blocks, p_.shape.max_blocks,
                     p_.shape.block_size, length, value);
}

// Newest tokens are entries like others, known by a negative `first`; of rows that have the same
// newest slot the first one's wins, and all of them win against positions.
__device__ inline void Resolver::InsertNewest() {
  if (p_.newest_slot == nullptr) return;
  for (int32_t rank = Thread(); rank < row_count_; rank += ThreadCount()) {
    const int32_t slot = p_.newest_slot[t_.rows[rank]];
    if (slot < 0) continue;
    atomicMin(t_.first + table_.Insert(slot), rank - row_count_);
    if (kept_ != nullptr) DropKept(kept_, p_.shape.rows_per_request, slot);
  }
}

__device__ inline void Resolver::InsertPositions() {
  for (int32_t start = Warp(); start < position_words_; start += kLoads * WarpCount()) {
    int32_t slots[kLoads];
#pragma unroll
    for (int32_t k = 0; k < kLoads; ++k) {
      const int32_t w = start + k * WarpCount();
      slots[k] = kNone;
      if (w >= position_words_) continue;
      const Position position = PositionOf(w);
      if (position.exists) slots[k] = SlotAt(position.at);
    }
#pragma unroll
    for (int32_t k = 0; k < kLoads; ++k) {
      const int32_t w = start + k * WarpCount();
      if (w < position_words_) InsertWord(w, slots[k]);
    }
  }
}

__device__ inline void Resolver::InsertWord(int32_t word, int32_t slot) {
  const Position position = PositionOf(word);
  if (slot >= 0) {
    const int32_t entry = table_.Insert(slot);
    atomicMin(t_.first + entry, word * kWarpThreads + Lane());
    p_.hot_indices[position.at] = PendingOf(entry);
  } else if (position.exists) {
    p_.hot_indices[position.at] = kNone;
  }
  counts_.CountLanes(Counter::kInvalid, position.exists && slot < 0);
}

// True if this thread met an owner that another order entry owns too.
__device__ inline bool Resolver::WalkOrder() {
  bool claimed_twice = false;
  for (int32_t start = Warp(); start < order_words_; start += kLoads * WarpCount()) {
    int32_t slots[kLoads];
#pragma unroll
    for (int32_t k = 0; k < kLoads; ++k) {
      const int32_t i = (start + k * WarpCount()) * kWarpThreads + Lane();
      slots[k] = kNone;
      if (i < hot_size_ && !IsBad(i)) slots[k] = LoadRelaxed(owner_ + t_.order[i]);
    }
#pragma unroll
    for (int32_t k = 0; k < kLoads; ++k) {
      const int32_t w = start + k * WarpCount();
      if (w < order_words_) claimed_twice |= WalkWord(w, slots[k]);
    }
  }
  return claimed_twice;
}

// `slot` is what the hot slot at this lane's order index owns.
__device__ inline bool Resolver::WalkWord(int32_t word, int32_t slot) {
  const int32_t i = word * kWarpThreads + Lane();
  const int32_t entry = slot < 0 ? kNone : table_.Find(slot);
  bool hit = false, claimed_twice = false;
  if (entry >= 0 && t_.first[entry] < 0) {
    // The newest row is being rewritten, so a copy of what was there before is stale.
    StoreRelaxed(owner_ + t_.order[i], kNone);
    if (score_ != nullptr) StoreRelaxed(score_ + t_.order[i], kNoScore);
  } else if (entry >= 0) {
    hit = true;
    claimed_twice = atomicMin(t_.place + entry, i) != kUnclaimed;
  }
  const uint32_t hits = __ballot_sync(kAllLanes, hit);
  if (Lane() == 0) t_.hits[word] = hits;
  return claimed_twice;
}

// Two hot slots own one slot, which only a stray writer can bring about: the older one is the hit.
// The hits are made anew from the claims. All threads.
__device__ inline void Resolver::KeepOldestClaims() {
  for (int32_t w = Thread(); w < order_words_; w += ThreadCount()) t_.hits[w] = 0;
  __syncthreads();
  for (int32_t e = Thread(); e < table_.entries(); e += ThreadCount()) {
    const int32_t i = t_.place[e];
    if (i != kUnclaimed) atomicOr(t_.hits + i / kWarpThreads, 1u << (i % kWarpThreads));
  }
}

// Answers all positions but those whose slot is missing. True if this thread has a position that
// repeats a miss. (The claims are final; CountBitsBefore() has the barriers for the bits.)
__device__ inline bool Resolver::FindMisses() {
  bool repeats_miss = false;
  for (int32_t w = Warp(); w < position_words_; w += WarpCount()) {
    const Position position = PositionOf(w);
    const int32_t pending = position.exists ? p_.hot_indices[position.at] : kNone;
    int32_t answer = kNone;
    bool is_newest = false, is_repeat = false, is_miss = false;
    if (pending != kNone) {
      const int32_t entry = EntryOf(pending);
      const int32_t first = t_.first[entry];
      const int32_t place = t_.place[entry];
      if (first < 0) {
        is_newest = true;
        answer = base_ + hot_size_ + first + row_count_;
      } else {
        is_repeat = first != w * kWarpThreads + Lane();
        if (place != kUnclaimed) {
          answer = base_ + t_.order[place];
        } else {
          is_miss = !is_repeat;
          repeats_miss |= is_repeat;
        }
      }
      if (answer >= 0) p_.hot_indices[position.at] = answer;
    }
    if (position.exists && p_.miss_mask != nullptr) p_.miss_mask[position.at] = 0;
    counts_.CountLanes(Counter::kNewest, is_newest);
    counts_.CountLanes(Counter::kDuplicates, is_repeat);
    const uint32_t misses = __ballot_sync(kAllLanes, is_miss);
    const int32_t answers = __popc(__ballot_sync(kAllLanes, answer >= 0));
    if (Lane() == 0) {
      t_.misses[w] = misses;
      if (answers > 0) atomicAdd(t_.valid + position.rank, answers);
    }
  }
  return repeats_miss;
}

}  // namespace kvtier::cuda
