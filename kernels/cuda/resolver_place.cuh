// Phases 6 to 8 of Resolver: the new order, the places of misses, the last outputs.
#pragma once

#include "kernels/cuda/resolver.cuh"
#include "kernels/eviction.h"

namespace kvtier::cuda {

// Evictables that stay, then those that this step's misses draw, then the hits.
__device__ inline void Resolver::Reorder() {
  const int32_t evictable_count = hot_size_ - t_.hits_before[order_words_];
  const int32_t drawn = min(t_.misses_before[position_words_], evictable_count);
  for (int32_t w = Warp(); w < order_words_; w += WarpCount()) {
    const int32_t i = w * kWarpThreads + Lane();
    const uint32_t hits = t_.hits[w];
    const int32_t older_hits = t_.hits_before[w] + __popc(hits & LanesBelow());
    const int32_t rank = i - older_hits;  // among the evictables, if it is one
    const Draw draw = score_ != nullptr ? DrawByScore(w) : Draw{rank < drawn, min(rank, drawn)};
    if (i >= hot_size_) continue;
    const int16_t entry = t_.order[i];
    int32_t to = evictable_count + older_hits;
    if ((hits >> Lane() & 1) == 0) {
      if (draw.is_drawn && draw.before < drawn) {
        t_.evictable[draw.before] = IsBad(i) ? kUnusable : static_cast<uint16_t>(entry);
      }
      to = draw.is_drawn ? evictable_count - drawn + draw.before : rank - draw.before;
    }
    // Scores that change during the step might lead anywhere.
    if (static_cast<uint32_t>(to) < static_cast<uint32_t>(hot_size_))
      StoreRelaxed(lru_ + to, entry);
  }
}

// Where the bytes of `slot` come from: itself, or kNone for zeros, for the reason in *refusal.
__device__ inline int32_t Resolver::SourceOf(int32_t slot, Counter* refusal) const {
  if (slot < 0 || slot >= p_.shape.slot_count) {
    *refusal = Counter::kUnsourced;
    return kNone;
  }
  if (p_.tracking.backed_generation == nullptr) return slot;
  // Whoever published the generation wrote the bytes before; they are read by a later kernel of
  // the device stream, hence after these loads.
  const int32_t backed = LoadRelaxed(p_.tracking.backed_generation + slot);
  const int32_t current = LoadRelaxed(p_.tracking.block_generation + slot / p_.shape.block_size);
  if (backed == current) return slot;
  *refusal = Counter::kUnbackedReads;
  return kNone;
}

__device__ inline void Resolver::AppendToPlan(const Position& position, int32_t miss, int32_t slot,
                                              int32_t hot_row) {
  const int32_t place = plan_.units == nullptr
                            ? t_.rows[position.rank]
                            : region_ * p_.shape.rows_per_request + position.rank;
  const int64_t at =
      PlanStart(place, top_k_) + miss - t_.misses_before[position.rank * words_per_row_];
  plan_.slots[at] = slot;
  plan_.hot_rows[at] = hot_row;
}

__device__ inline void Resolver::PlaceMisses() {
  const int32_t evictable_count = hot_size_ - t_.hits_before[order_words_];
  for (int32_t w = Warp(); w < position_words_; w += WarpCount()) {
    const uint32_t misses = t_.misses[w];
    if (misses == 0) continue;
    const Position position = PositionOf(w);
    int32_t source = kNone, hot_slot = kNone;
    bool drew_bad = false, evicts = false, is_kept = false;
    Counter refusal = Counter::kUnplaced;
    const bool is_miss = (misses >> Lane() & 1) != 0;
    if (is_miss) {
      const int32_t entry = EntryOf(p_.hot_indices[position.at]);
      const int32_t miss = t_.misses_before[w] + __popc(misses & LanesBelow());
      if (miss < evictable_count) {
        const uint16_t drawn = t_.evictable[miss];
        drew_bad = drawn >= hot_size_;  // kUnusable is
        if (!drew_bad) {
          hot_slot = drawn;
          source = SourceOf(table_.slot_of(entry), &refusal);
          evicts = atomicExch(owner_ + hot_slot, source) >= 0;
          t_.place[entry] = -1 - hot_slot;
          if (score_ != nullptr) {
            StoreRelaxed(score_ + hot_slot, source >= 0 ? kMissScore : kNoScore);
          }
        }
      }
      const int32_t from = source < 0 ? kNone : KeptOr(p_.shape, kept_, region_, source);
      is_kept = NamesHotRow(from);
      const int32_t hot_row = hot_slot < 0 ? kNone : base_ + hot_slot;
      p_.hot_indices[position.at] = hot_row;
      if (source >= 0 && p_.miss_mask != nullptr) p_.miss_mask[position.at] = 1;
      AppendToPlan(position, miss, from, hot_row);
    }
    const int32_t placed = __popc(__ballot_sync(kAllLanes, hot_slot >= 0));
    if (Lane() == 0 && placed > 0) atomicAdd(t_.valid + position.rank, placed);
    counts_.CountLanes(Counter::kRowsCopied, source >= 0);
    counts_.CountLanes(Counter::kEvictions, evicts);
    if (is_kept) counts_.Add(Counter::kRowsKept, 1);
    // What went wrong is rare: the lanes count one by one.
    if (is_miss && source < 0) counts_.Add(refusal, 1);
    if (drew_bad) counts_.Add(Counter::kStateRepairs, 1);
  }
}

// Positions that ask again for a slot that is missing.
__device__ inline void Resolver::RepeatMisses() {
  for (int32_t w = Warp(); w < position_words_; w += WarpCount()) {
    const Position position = PositionOf(w);
    // Misses have their answers: what is pending now repeats one of them.
    const int32_t pending = position.exists ? p_.hot_indices[position.at] : kNone;
    int32_t answer = kNone;
    if (pending < kNone) {
      const int32_t place = t_.place[EntryOf(pending)];
      if (place < 0 && -1 - place < hot_size_) answer = base_ - 1 - place;
      p_.hot_indices[position.at] = answer;
    }
    const int32_t answers = __popc(__ballot_sync(kAllLanes, answer >= 0));
    if (Lane() == 0 && answers > 0) atomicAdd(t_.valid + position.rank, answers);
  }
}

// What is known once for each row, and for the request.
__device__ inline void Resolver::WriteCounts() {
  for (int32_t rank = Thread(); rank < row_count_; rank += ThreadCount()) {
    const int32_t row = t_.rows[rank];
    if (p_.valid_counts != nullptr) p_.valid_counts[row] = t_.valid[rank];
    plan_.counts[row] =
        t_.misses_before[(rank + 1) * words_per_row_] - t_.misses_before[rank * words_per_row_];
    if (plan_.units != nullptr) plan_.units[row] = region_ * p_.shape.rows_per_request + rank;
  }
  if (Thread() == 0) {
    counts_.Add(Counter::kSteps, 1);
    counts_.Add(Counter::kHits, t_.hits_before[order_words_]);
    counts_.Add(Counter::kMisses, t_.misses_before[position_words_]);
  }
}

}  // namespace kvtier::cuda
