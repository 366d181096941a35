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

// Evictables that stay, then the oldest, which this step's misses draw, then the hits. Calls
// function(hot slot, rank, to) for the warp's entries of the order: `rank` is the one among the
// evictables, kNone for a hit, and `to` the new place.
KVTIER_RESOLVER template <typename Function>
__device__ inline void KVTIER_RESOLVER_OF::ForEachMove(const Function& function) {
  const int32_t evictables = hot_size() - hits_;
  int32_t hits = older_hits_;
  for (int32_t first = first_order_word(); first < end_order_word(); first += kOrderWords) {
    const OrderPart part = kExact ? order_ : ReadOrder(first);
#pragma unroll
    for (int32_t k = 0; k < kOrderWords; ++k) {
      const int32_t i = (first + k) * kWarpThreads + Lane();
      const bool exists = kExact || (first + k < end_order_word() && i < hot_size());
      const bool is_hit = (part.hits[k] >> Lane() & 1) != 0;
      const int32_t older_hits = hits + __popc(part.hits[k] & LanesBelow());
      hits += __popc(part.hits[k]);
      const int32_t rank = is_hit ? kNone : i - older_hits;
      int32_t to = evictables + older_hits;
      if (!is_hit) to = rank < misses_ ? evictables - misses_ + rank : rank - misses_;
      if (exists) function(part.hot_slot[k], rank, to);
    }
    if constexpr (kExact) break;
  }
}

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ListVictims() {
  auto* const victim = Shared<uint16_t>(t_.victim);
  const auto end = static_cast<uint32_t>(misses_);
  ForEachMove([victim, end](uint32_t hot_slot, int32_t rank, int32_t) {
    if (static_cast<uint32_t>(rank) < end) victim[rank] = static_cast<uint16_t>(hot_slot);
  });
}

// The new order, once there are as many misses as there will be. The others must have read the old
// one.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::Reorder() {
  if (!WritesOrder()) return;
  int16_t* const lru = p_.state.lru + int64_t{region_} * hot_size();
  ForEachMove([lru](uint32_t hot_slot, int32_t, int32_t to) {
    StoreRelaxed(lru + to, static_cast<int16_t>(hot_slot));
  });
}

}  // namespace kvtier::cuda
