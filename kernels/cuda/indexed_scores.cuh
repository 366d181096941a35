// The scores of hot slots in IndexedResolver, where a cache evicts by them (eviction.h). Behind the
// step's hits, with a barrier behind each:
//
//   3.  Age    every score ages, those of hits rise; how many evictables have each score. Beside
//              what the phase does anyway
//   4a. Limit  all evictables below one score are drawn, and the oldest of those that have it: one
//              warp finds it, while others unify missing positions. As many are drawn as positions
//              are missing; if some have the same slot, fewer will do, and it is found again
//   4b. Count  how many there are of both kinds in each warp's part of the order
//   4c. List   the victims: a warp knows of each of its evictables whether it is drawn, and how
//              many older ones are
#pragma once

#include "kernels/cuda/indexed_resolver.cuh"
#include "kernels/cuda/scan.cuh"

namespace kvtier::cuda {

KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ClearScores() {
  for (int32_t i = Thread(); i < kScoreCopies * kScoreStride / 4; i += threads()) {
    Shared<uint4>(t_.with_score)[i] = make_uint4(0, 0, 0, 0);
  }
}

// One more evictable has this score.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::CountScore(uint32_t score) {
  atomicAdd(Shared<int32_t>(t_.with_score) + Thread() % kScoreCopies * kScoreStride + score, 1);
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
    static_assert(kUnusableScore == 0xff);
    Shared<uint32_t>(t_.evictable)[Thread()] = aged | is_hit;
#pragma unroll
    for (int32_t k = 0; k < 4; ++k) {
      if (missing_ > 0 && (is_hit >> 8 * k & 1) == 0) CountScore(aged >> 8 * k & 0xff);
    }
  } else {
    auto* const score = Shared<uint8_t>(t_.score);
    for (int32_t h = Thread(); h < hot_size(); h += threads()) {
      uint8_t aged = AgedScore(score[h]);
      if (newest_ >= 0 && owner[h] == newest_) aged = kNoScore;
      const bool is_hit = Shared<uint8_t>(t_.is_hit)[h] != 0;
      if (!is_hit && missing_ > 0) CountScore(aged);
      score[h] = is_hit ? HitScore(aged) : aged;
      Shared<uint8_t>(t_.evictable)[h] = is_hit ? kUnusableScore : aged;
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

// 4a. The score at which misses stop to draw all, and how many of those that have it they draw:
// first among priorities, a lane each, then among the scores of one. By one warp.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::FindLimit() {
  static_assert(kScoreValues == kWarpThreads * kScoreHits && kScoreHits == 8);
  const auto* const with_score = Shared<int32_t>(t_.with_score);
  uint32_t counted = 0;
#pragma unroll
  for (int32_t copy = 0; copy < kScoreCopies; ++copy) {
    const auto* const part = reinterpret_cast<const uint4*>(with_score + copy * kScoreStride);
    const uint4 low = part[2 * Lane()], high = part[2 * Lane() + 1];
    counted += low.x + low.y + low.z + low.w + high.x + high.y + high.z + high.w;
  }
  const auto sum = static_cast<int32_t>(counted);
  int32_t before = InclusiveWarpSum(sum) - sum;
  // The first at which there are enough. (A damaged order may ask for more than there are.)
  const uint32_t enough = __ballot_sync(kAllLanes, misses_ <= before + sum);
  const int32_t priority = enough == 0 ? kWarpThreads - 1 : __ffs(static_cast<int32_t>(enough)) - 1;
  before = __shfl_sync(kAllLanes, before, priority);
  int32_t mine = 0;
#pragma unroll
  for (int32_t copy = 0; copy < kScoreCopies; ++copy) {
    const int32_t hits = min(Lane(), kScoreHits - 1);
    mine += with_score[copy * kScoreStride + priority * kScoreHits + hits];
  }
  before += InclusiveWarpSum(mine) - mine;
  const uint32_t last = __ballot_sync(kAllLanes, misses_ <= before + mine) & 0xff;
  const int32_t hits = last == 0 ? kScoreHits - 1 : __ffs(static_cast<int32_t>(last)) - 1;
  if (Lane() != hits) return;
  // A limit that no entry has that is not evictable.
  words()[kLimit] = min(priority * kScoreHits + hits, kUnusableScore - 1);
  words()[kDrawnAtLimit] = misses_ - before;
}

// Of the lane's entries of the order, a byte each; kUnusableScore: none that a miss may draw.
KVTIER_RESOLVER __device__ inline uint32_t KVTIER_RESOLVER_OF::ScoresOf(
    int32_t first, const OrderPart& part) const {
  const auto* const evictable = Shared<uint8_t>(t_.evictable);
  uint32_t scores = 0;
#pragma unroll
  for (int32_t k = 0; k < kOrderWords; ++k) {
    const bool exists = kExact || (first + k < end_order_word() &&
                                   (first + k) * kWarpThreads + Lane() < hot_size());
    scores |= uint32_t{exists ? evictable[part.hot_slot[k]] : kUnusableScore} << 8 * k;
  }
  return scores;
}

// Which of the lane's entries are below the limit and which at it: the highest bit of the byte of
// each. All four at once, since a warp has 128 entries and the block 32 warps.
KVTIER_RESOLVER __device__ inline typename KVTIER_RESOLVER_OF::Draws
KVTIER_RESOLVER_OF::CompareWithLimit(uint32_t scores) const {
  constexpr uint32_t kHighest = 0x80 * kEachByte<uint32_t>;
  const uint32_t limit = static_cast<uint32_t>(words()[kLimit]) * kEachByte<uint32_t>;
  // The highest bit of each byte is set where the other bits are no less than the limit's.
  const uint32_t no_less = (scores | kHighest) - (limit & ~kHighest);
  const uint32_t differs = scores ^ limit;
  const uint32_t any_bit = ((differs & ~kHighest) + ~kHighest) | differs;
  return {((differs & limit) | (~differs & ~no_less)) & kHighest, ~any_bit & kHighest};
}

// 4b, behind a barrier; another one must follow. All threads.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::CountDraws() {
  uint32_t draws = 0;
  for (int32_t w = first_order_word(); w < end_order_word(); w += kOrderWords) {
    scores_ = ScoresOf(w, kExact ? order_ : ReadOrder(w));
    const Draws of_lane = CompareWithLimit(scores_);
    draws += static_cast<uint32_t>(__popc(of_lane.below) | __popc(of_lane.at_limit) << 16);
  }
  draws_ = __reduce_add_sync(kAllLanes, draws);
  if (Lane() == 0) Shared<uint32_t>(t_.warp_draws)[Warp()] = draws_;
}

// 4c. The victims, and the block's part of the new order. Scores are counted by hot slot and drawn
// by entry: an order that names one twice, and is damaged so that its sum does not show it, may
// draw too few or too many. Then it stays as it is, victims that were not found are hot slot 0, and
// the index is given up: making it anew shows what is wrong.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::ListDraws() {
  const int32_t drawn_at_limit = words()[kDrawnAtLimit];
  const uint32_t of_lane = Lane() < warps() ? Shared<uint32_t>(t_.warp_draws)[Lane()] : 0;
  const uint32_t all = __reduce_add_sync(kAllLanes, of_lane);
  const int32_t draws_of_all =
      static_cast<int32_t>(all & 0xffff) + min(static_cast<int32_t>(all >> 16), drawn_at_limit);
  draws_all_ = draws_of_all == misses_;
  for (int32_t m = draws_of_all + Thread(); m < misses_; m += threads()) {
    Shared<uint16_t>(t_.victim)[m] = 0;
  }
  const bool writes_order = draws_all_ && WritesOrder();
  // Most warps draw none: misses take the oldest, more or less.
  if (draws_ == 0 && !writes_order) return;
  const uint32_t older = __reduce_add_sync(kAllLanes, Lane() < Warp() ? of_lane : 0);
  auto older_below = static_cast<int32_t>(older & 0xffff);
  auto older_at_limit = static_cast<int32_t>(older >> 16);
  int32_t hits = older_hits_;
  for (int32_t first = first_order_word(); first < end_order_word(); first += kOrderWords) {
    const OrderPart part = kExact ? order_ : ReadOrder(first);
    Draws draws = {0, 0};
    if (draws_ != 0) draws = CompareWithLimit(kExact ? scores_ : ScoresOf(first, part));
#pragma unroll
    for (int32_t k = 0; k < kOrderWords; ++k) {
      // How many are drawn that are older than the lane's entry, and whether it is.
      int32_t rank = older_below + min(older_at_limit, drawn_at_limit);
      bool is_drawn = false;
      if (draws_ != 0) {
        const bool is_below = (draws.below >> 8 * k & 0x80) != 0;
        const bool is_at_limit = (draws.at_limit >> 8 * k & 0x80) != 0;
        const uint32_t below = __ballot_sync(kAllLanes, is_below);
        const uint32_t at_limit = __ballot_sync(kAllLanes, is_at_limit);
        const int32_t before = older_at_limit + __popc(at_limit & LanesBelow());
        is_drawn = is_below || (is_at_limit && before < drawn_at_limit);
        rank = older_below + __popc(below & LanesBelow()) + min(before, drawn_at_limit);
        older_below += __popc(below);
        older_at_limit += __popc(at_limit);
        if (is_drawn && rank < misses_) {
          Shared<uint16_t>(t_.victim)[rank] = static_cast<uint16_t>(part.hot_slot[k]);
        }
      }
      if (!writes_order) continue;
      StoreMoved(first + k, part, k, hits, is_drawn, rank);
      hits += __popc(part.hits[k]);
    }
    if constexpr (kExact) break;
  }
}

// Where the lane's entry of word `word` goes: evictables that stay, those that misses draw, hits.
// Before the word there are so many `hits`; `rank` victims are older than the entry.
KVTIER_RESOLVER __device__ inline void KVTIER_RESOLVER_OF::StoreMoved(int32_t word,
                                                                      const OrderPart& part,
                                                                      int32_t k, int32_t hits,
                                                                      bool is_drawn,
                                                                      int32_t rank) const {
  const int32_t i = word * kWarpThreads + Lane();
  if (!kExact && (word >= end_order_word() || i >= hot_size())) return;
  const int32_t evictables = hot_size() - hits_;
  const int32_t older_hits = hits + __popc(part.hits[k] & LanesBelow());
  int32_t to = i - older_hits - rank;
  if (is_drawn) to = evictables - misses_ + rank;
  if ((part.hits[k] >> Lane() & 1) != 0) to = evictables + older_hits;
  if (static_cast<uint32_t>(to) >= static_cast<uint32_t>(hot_size())) return;
  StoreRelaxed(p_.state.lru + int64_t{region_} * hot_size() + to,
               static_cast<int16_t>(part.hot_slot[k]));
}

}  // namespace kvtier::cuda
