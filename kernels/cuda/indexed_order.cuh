// The order of hot slots in IndexedResolver: reading it, judging it, and the new one.
#pragma once

#include "kernels/cuda/indexed_resolver.cuh"

namespace kvtier::cuda {

KVTIER_RESOLVER __device__ inline typename KVTIER_RESOLVER_OF::OrderPart
KVTIER_RESOLVER_OF::ReadOrder(int32_t first) const {
  OrderPart part;
#pragma unroll
  for (int32_t k = 0; k < kOrderWords; ++k) {
    const int32_t i = (first + k) * kWarpThreads + Lane();
    const bool exists = kExact || (first + k < end_order_word() && i < hot_size());
    part.hot_slot[k] = exists ? Shared<uint16_t>(t_.order)[i] : 0;
    const auto last = static_cast<uint32_t>(hot_size() - 1);
    const bool is_hit = exists && Shared<uint8_t>(t_.is_hit)[min(part.hot_slot[k], last)] != 0;
    part.hits[k] = __ballot_sync(kAllLanes, is_hit);
  }
  return part;
}

// Adds the entries to what the whole order is judged by.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::CheckOrder(int32_t first,
                                                                      const OrderPart& part,
                                                                      uint32_t* largest,
                                                                      uint32_t* sum) const {
#pragma unroll
  for (int32_t k = 0; k < kOrderWords; ++k) {
    const int32_t i = (first + k) * kWarpThreads + Lane();
    if (!kExact && (first + k >= end_order_word() || i >= hot_size())) continue;
    *largest = max(*largest, part.hot_slot[k]);
    *sum += Mix(part.hot_slot[k]);
    if constexpr (!kExact) *sum -= Mix(static_cast<uint32_t>(i));
  }
}

// Evictables that stay, then those that this step's misses draw, then the hits. Calls function(hot
// slot, move) for the warp's entries of the order.
KVTIER_RESOLVER template <typename Function>
__device__ inline void KVTIER_RESOLVER_OF::ForEachMove(const Function& function) {
  const int32_t evictables = hot_size() - hits_;
  Older older = older_;
  for (int32_t first = first_order_word(); first < end_order_word(); first += kOrderWords) {
    const OrderPart part = kExact ? order_ : ReadOrder(first);
#pragma unroll
    for (int32_t k = 0; k < kOrderWords; ++k) {
      const int32_t i = (first + k) * kWarpThreads + Lane();
      const bool exists = kExact || (first + k < end_order_word() && i < hot_size());
      const bool is_hit = (part.hits[k] >> Lane() & 1) != 0;
      const int32_t older_hits = older.hits + __popc(part.hits[k] & LanesBelow());
      older.hits += __popc(part.hits[k]);
      const int32_t rank = i - older_hits;  // among the evictables, if it is one
      Move move = {evictables + older_hits, kNone};
      if constexpr (kAged) {
        int32_t drawn_before = 0;
        if (misses_ > 0) {
          int32_t score = kUnusableScore;
          if constexpr (kExact) {
            score = scores_ >> 8 * k & 0xff;
          } else if (exists && !is_hit) {
            score = Shared<uint8_t>(t_.score)[part.hot_slot[k]];
          }
          move.draw = DrawByScore(score, &older, &drawn_before);
        }
        if (!is_hit)
          move.to = move.draw < 0 ? rank - drawn_before : evictables - misses_ + move.draw;
      } else if (!is_hit) {
        move.draw = rank < misses_ ? rank : kNone;
        move.to = rank < misses_ ? evictables - misses_ + rank : rank - misses_;
      }
      if (exists) function(part.hot_slot[k], move);
    }
    if constexpr (kExact) break;
  }
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ListVictims() {
  auto* const victim = Shared<uint16_t>(t_.victim);
  // Scores are counted by hot slot and drawn by entry: an order that names one twice might draw
  // more.
  const auto end = static_cast<uint32_t>(misses_);
  ForEachMove([victim, end](uint32_t hot_slot, const Move& move) {
    const bool is_drawn = kAged ? static_cast<uint32_t>(move.draw) < end : move.draw >= 0;
    if (is_drawn) victim[move.draw] = static_cast<uint16_t>(hot_slot);
  });
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::Reorder() {
  int16_t* const lru = p_.state.lru + int64_t{region_} * hot_size();
  const auto end = static_cast<uint32_t>(hot_size());
  ForEachMove([lru, end](uint32_t hot_slot, const Move& move) {
    if (kAged && static_cast<uint32_t>(move.to) >= end) return;
    StoreRelaxed(lru + move.to, static_cast<int16_t>(hot_slot));
  });
}

}  // namespace kvtier::cuda
