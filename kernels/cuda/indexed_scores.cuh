// The scores of hot slots in IndexedResolver, where a cache evicts by them (eviction.h). If
// something is missing, before the victims of phase 4 are listed:
//
//   4a. Age     every score ages, those of hits rise; how many evictables have each score
//   4b. Limit   all evictables below one score are drawn, and the oldest of those that have it
//   4c. Count   both kinds in each warp's part of the order
//
// Then a warp knows of each of its evictables whether it is drawn, and how many older ones are.
// Else scores age in phase 5, in one pass over a byte a hot slot.
#pragma once

#include "kernels/cuda/indexed_resolver.cuh"
#include "kernels/cuda/scan.cuh"

namespace kvtier::cuda {

inline constexpr int32_t kScoreValues = 256;

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ClearScores() {
  for (int32_t s = Thread(); s < kScoreValues; s += threads()) {
    Shared<int32_t>(t_.with_score)[s] = 0;
  }
}

// By hot slot, which is how scores lie. A barrier must follow before they are used.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::AgeScores() {
  auto* const score = Shared<uint8_t>(t_.score);
  const auto* const is_hit = Shared<uint8_t>(t_.is_hit);
  uint8_t* const out = p_.state.score + int64_t{region_} * hot_size();
  const auto* const owner = Shared<int32_t>(t_.owner);
  for (int32_t h = Thread(); h < hot_size(); h += threads()) {
    uint8_t aged = AgedScore(score[h]);
    if (newest_ >= 0 && owner[h] == newest_) aged = kNoScore;  // it is dropped
    if (is_hit[h] != 0) {
      aged = HitScore(aged);
    } else if (misses_ > 0) {
      atomicAdd(Shared<int32_t>(t_.with_score) + aged, 1);
    }
    score[h] = aged;
    if (writes_) StoreRelaxed(out + h, aged);
  }
}

// All threads.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ChooseVictims() {
  constexpr int32_t kOfLane = kScoreValues / kWarpThreads;
  __syncthreads();
  // Each warp finds the limit by itself: a lane adds up neighbouring scores.
  const int32_t* const mine = Shared<int32_t>(t_.with_score) + Lane() * kOfLane;
  int32_t sum = 0;
#pragma unroll
  for (int32_t k = 0; k < kOfLane; ++k) sum += mine[k];
  int32_t below = InclusiveWarpSum(sum) - sum;
  const bool has_limit = below < misses_ && misses_ <= below + sum;
  int32_t limit = 0, at_limit = 0;
  for (int32_t k = 0; has_limit && k < kOfLane; ++k) {
    if (misses_ <= below + mine[k]) {
      limit = Lane() * kOfLane + k;
      at_limit = misses_ - below;
      break;
    }
    below += mine[k];
  }
  const int32_t lane = __ffs(static_cast<int32_t>(__ballot_sync(kAllLanes, has_limit))) - 1;
  limit_ = __shfl_sync(kAllLanes, limit, lane);
  drawn_at_limit_ = __shfl_sync(kAllLanes, at_limit, lane);

  const auto* const score = Shared<uint8_t>(t_.score);
  uint32_t draws = 0;
  for (int32_t w = first_order_word(); w < end_order_word(); w += kOrderWords) {
    const OrderPart part = kExact ? order_ : ReadOrder(w);
#pragma unroll
    for (int32_t k = 0; k < kOrderWords; ++k) {
      const bool exists =
          kExact || (w + k < end_order_word() && (w + k) * kWarpThreads + Lane() < hot_size());
      if (!exists || (part.hits[k] >> Lane() & 1) != 0) continue;
      const int32_t its = score[part.hot_slot[k]];
      draws += (its < limit_ ? 1 : 0) + (its == limit_ ? 1 << 16 : 0);
    }
  }
  draws = __reduce_add_sync(kAllLanes, draws);
  if (Lane() == 0) Shared<uint32_t>(t_.warp_draws)[Warp()] = draws;
  __syncthreads();
  const uint32_t of_lane = Lane() < Warp() ? Shared<uint32_t>(t_.warp_draws)[Lane()] : 0;
  const uint32_t before = __reduce_add_sync(kAllLanes, of_lane);
  older_.below = static_cast<int32_t>(before & 0xffff);
  older_.at = static_cast<int32_t>(before >> 16);
}

// The rank among the victims of the lane's entry of the next word of the order, kNone if it is
// none; and how many victims are older. All lanes.
KVTIER_RESOLVER __device__ inline int32_t KVTIER_RESOLVER_OF::DrawByScore(
    uint32_t hot_slot, bool is_evictable, Older* older, int32_t* drawn_before) const {
  const int32_t score = is_evictable ? Shared<uint8_t>(t_.score)[hot_slot] : kScoreValues;
  const uint32_t below = __ballot_sync(kAllLanes, score < limit_);
  const uint32_t at = __ballot_sync(kAllLanes, score == limit_);
  const int32_t older_at = older->at + __popc(at & LanesBelow());
  *drawn_before = older->below + __popc(below & LanesBelow()) + min(older_at, drawn_at_limit_);
  older->below += __popc(below);
  older->at += __popc(at);
  const bool is_drawn = score < limit_ || (score == limit_ && older_at < drawn_at_limit_);
  return is_drawn ? *drawn_before : kNone;
}

}  // namespace kvtier::cuda
