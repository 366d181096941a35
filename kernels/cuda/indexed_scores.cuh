// The scores of hot slots in IndexedResolver, where a cache evicts by them (eviction.h). If
// something is missing, phase 4 takes three steps, with a barrier behind each:
//
//   4a. Age     every score ages, those of hits rise; how many evictables have each score. Beside
//               that missing positions are unified
//   4b. Limit   all evictables below one score are drawn, and the oldest of those that have it;
//               how many there are of both kinds in each warp's part of the order
//   4c. List    the victims: a warp knows of each of its evictables whether it is drawn, and how
//               many older ones are
//
// Else scores age in phase 5.
#pragma once

#include "kernels/cuda/indexed_resolver.cuh"
#include "kernels/cuda/scan.cuh"

namespace kvtier::cuda {

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ClearScores() {
  constexpr int32_t kVectors = 2 * kScoreValues * kScoreCopies / 16;
  for (int32_t i = Thread(); i < kVectors; i += threads()) {
    Shared<uint4>(t_.with_score)[i] = make_uint4(0, 0, 0, 0);
  }
}

// One more evictable has this score.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::CountScore(uint32_t score) {
  // Two counts a word.
  const uint32_t word = (Thread() % kScoreCopies * kScoreValues + score) / 2;
  atomicAdd(Shared<int32_t>(t_.with_score) + word, score % 2 == 0 ? 1 : 1 << 16);
}

// By hot slot, which is how scores lie, and those of evictables are counted if a miss may draw one.
// A barrier must follow before they are used.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::AgeScores() {
  const auto* const owner = Shared<int32_t>(t_.owner);
  if constexpr (kExact) {  // four a thread
    static_assert(kOfThread == 4);
    uint32_t* const scores = Shared<uint32_t>(t_.score) + Thread();
    const uint32_t hits = Shared<uint32_t>(t_.is_hit)[Thread()];  // a byte each, 1 or 0
    uint32_t aged = AgedScores(*scores);
    if (newest_ >= 0) {  // its copy is dropped
#pragma unroll
      for (int32_t k = 0; k < 4; ++k) {
        if (owner[4 * Thread() + k] == newest_) aged &= ~(0xffu << 8 * k);
      }
    }
    const uint32_t is_hit = hits * 0xff;
    *scores = (HitScores(aged) & is_hit) | (aged & ~is_hit);
#pragma unroll
    for (int32_t k = 0; k < 4; ++k) {
      if (missing_ > 0 && (is_hit >> 8 * k & 1) == 0) CountScore(aged >> 8 * k & 0xff);
    }
  } else {
    auto* const score = Shared<uint8_t>(t_.score);
    for (int32_t h = Thread(); h < hot_size(); h += threads()) {
      uint8_t aged = AgedScore(score[h]);
      if (newest_ >= 0 && owner[h] == newest_) aged = kNoScore;
      if (Shared<uint8_t>(t_.is_hit)[h] != 0) {
        aged = HitScore(aged);
      } else if (missing_ > 0) {
        CountScore(aged);
      }
      score[h] = aged;
    }
  }
}

// All of the region's, as this step leaves them. Each thread has written those that it reads here,
// or there was a barrier.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::StoreScores() const {
  uint8_t* const out = p_.state.score + int64_t{region_} * hot_size();
  if constexpr (kExact) {
    const uint32_t four = Shared<uint32_t>(t_.score)[Thread()];
    StoreRelaxed(reinterpret_cast<uint32_t*>(out) + Thread(), four);
  } else {
    for (int32_t h = Thread(); h < hot_size(); h += threads()) {
      StoreRelaxed(out + h, Shared<uint8_t>(t_.score)[h]);
    }
  }
}

// The score at which misses stop to draw all, and how many of those that have it they draw. Each
// warp finds them by itself: first among priorities, a lane each, then among the scores of one.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::FindLimit() {
  static_assert(kScoreValues == kWarpThreads * kScoreHits && kScoreHits == 8);
  uint4 counts = make_uint4(0, 0, 0, 0);
#pragma unroll
  for (int32_t copy = 0; copy < kScoreCopies; ++copy) {
    const uint4 part = Shared<uint4>(t_.with_score)[copy * kWarpThreads + Lane()];
    counts.x += part.x, counts.y += part.y, counts.z += part.z, counts.w += part.w;
  }
  const uint32_t pairs = counts.x + counts.y + counts.z + counts.w;
  const auto sum = static_cast<int32_t>((pairs & 0xffff) + (pairs >> 16));
  int32_t before = InclusiveWarpSum(sum) - sum;
  // The first at which there are enough. (A damaged order may ask for more than there are.)
  const uint32_t enough = __ballot_sync(kAllLanes, misses_ <= before + sum);
  const int32_t priority = enough == 0 ? kWarpThreads - 1 : __ffs(static_cast<int32_t>(enough)) - 1;
  before = __shfl_sync(kAllLanes, before, priority);
  // Now lane l has score number l of that priority.
  const uint32_t x = __shfl_sync(kAllLanes, counts.x, priority);
  const uint32_t y = __shfl_sync(kAllLanes, counts.y, priority);
  const uint32_t z = __shfl_sync(kAllLanes, counts.z, priority);
  const uint32_t w = __shfl_sync(kAllLanes, counts.w, priority);
  const uint32_t low = (Lane() & 2) == 0 ? x : y, high = (Lane() & 2) == 0 ? z : w;
  const uint32_t pair = Lane() >= kScoreHits ? 0 : (Lane() & 4) == 0 ? low : high;
  const auto mine = static_cast<int32_t>(Lane() % 2 == 0 ? pair & 0xffff : pair >> 16);
  before += InclusiveWarpSum(mine) - mine;
  const uint32_t last = __ballot_sync(kAllLanes, misses_ <= before + mine) & 0xff;
  const int32_t hits = last == 0 ? kScoreHits - 1 : __ffs(static_cast<int32_t>(last)) - 1;
  // One that no entry has that is not evictable.
  limit_ = min(priority * kScoreHits + hits, kUnusableScore - 1);
  drawn_at_limit_ = misses_ - __shfl_sync(kAllLanes, before, hits);
}

// All threads, behind a barrier after AgeScores().
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ChooseVictims() {
  FindLimit();
  const auto* const score = Shared<uint8_t>(t_.score);
  uint32_t draws = 0, scores = 0;
  for (int32_t w = first_order_word(); w < end_order_word(); w += kOrderWords) {
    const OrderPart part = kExact ? order_ : ReadOrder(w);
#pragma unroll
    for (int32_t k = 0; k < kOrderWords; ++k) {
      const bool exists =
          kExact || (w + k < end_order_word() && (w + k) * kWarpThreads + Lane() < hot_size());
      const bool is_evictable = exists && (part.hits[k] >> Lane() & 1) == 0;
      const int32_t its = is_evictable ? score[part.hot_slot[k]] : kUnusableScore;
      scores |= static_cast<uint32_t>(its) << 8 * k;
      draws += (its < limit_ ? 1 : 0) + (its == limit_ ? 1 << 16 : 0);
    }
  }
  if constexpr (kExact) scores_ = scores;
  draws = __reduce_add_sync(kAllLanes, draws);
  if (Lane() == 0) Shared<uint32_t>(t_.warp_draws)[Warp()] = draws;
  __syncthreads();
  const uint32_t of_lane = Lane() < Warp() ? Shared<uint32_t>(t_.warp_draws)[Lane()] : 0;
  const uint32_t before = __reduce_add_sync(kAllLanes, of_lane);
  older_.below = static_cast<int32_t>(before & 0xffff);
  older_.at = static_cast<int32_t>(before >> 16);
}

// The rank among the victims of the lane's entry of the next word of the order, which has this
// score (kUnusableScore: it is no evictable), kNone if it is none; and how many victims are older.
// All lanes.
KVTIER_RESOLVER __device__ inline int32_t KVTIER_RESOLVER_OF::DrawByScore(
    int32_t score, Older* older, int32_t* drawn_before) const {
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
