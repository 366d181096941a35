// The victims of a step where hot slots have scores: what Resolver does between 5 and 6.
//
//   5a. Age      every score of the order ages, hits rise; how many evictables have each score
//   5b. Limit    all evictables below one score are victims, and the oldest of those that have it
//   5c. Mark     victims before each word: a scan of two sums in one
//
// Example: the scores of five evictables, oldest first, are 30, 10, 20, 10, 10, and two misses
// draw. The limit is 10, of which two are drawn: order indices 1 and 3.
#pragma once

#include "kernels/cuda/resolver.cuh"
#include "kernels/eviction.h"

namespace kvtier::cuda {

// The score of this lane's order entry as it is after 5a. The same lane has written it.
__device__ inline uint8_t Resolver::ScoreAt(int32_t index) const {
  return IsBad(index) ? kUnusableScore : LoadRelaxed(score_ + t_.order[index]);
}

__device__ inline void Resolver::AgeScores() {
  for (int32_t w = Warp(); w < order_words_; w += WarpCount()) {
    const int32_t i = w * kWarpThreads + Lane();
    if (i >= hot_size_) continue;
    const bool is_hit = (t_.hits[w] >> Lane() & 1) != 0;
    if (!IsBad(i)) {
      uint8_t* const score = score_ + t_.order[i];
      const uint8_t aged = AgedScore(LoadRelaxed(score));
      StoreRelaxed(score, is_hit ? HitScore(aged) : aged);
    }
    if (!is_hit) atomicAdd(t_.with_score + ScoreAt(i), 1);
  }
}

// One warp. Of `drawn` evictables, which are not more than there are.
__device__ inline void Resolver::FindLimit(int32_t drawn) {
  constexpr int32_t kScoresPerLane = kScoreCount / kWarpThreads;
  const int32_t* const mine = t_.with_score + Lane() * kScoresPerLane;
  int32_t sum = 0;
  for (int32_t k = 0; k < kScoresPerLane; ++k) sum += mine[k];
  const int32_t end = InclusiveWarpSum(sum);
  if (end < drawn || end - sum >= drawn) return;
  int32_t k = 0, at_limit = drawn - (end - sum);
  while (at_limit > mine[k]) at_limit -= mine[k++];
  t_.limit[0] = Lane() * kScoresPerLane + k;
  t_.limit[1] = at_limit;
}

// The lanes of word `word` that hold evictables below the limit and at it. All lanes of the warp.
__device__ inline Resolver::Candidates Resolver::CandidatesOf(int32_t word) const {
  const int32_t i = word * kWarpThreads + Lane();
  const bool is_evictable = i < hot_size_ && (t_.hits[word] >> Lane() & 1) == 0;
  const int32_t score = is_evictable ? ScoreAt(i) : kScoreCount;
  return {__ballot_sync(kAllLanes, score < t_.limit[0]),
          __ballot_sync(kAllLanes, score == t_.limit[0])};
}

__device__ inline void Resolver::ChooseVictims() {
  AgeScores();
  __syncthreads();
  const int32_t evictable_count = hot_size_ - t_.hits_before[order_words_];
  const int32_t drawn = min(t_.misses_before[position_words_], evictable_count);
  if (Warp() == 0 && drawn > 0) FindLimit(drawn);
  __syncthreads();
  for (int32_t w = Warp(); w < order_words_; w += WarpCount()) {
    const Candidates candidates = CandidatesOf(w);
    if (Lane() == 0) t_.victims[w] = __popc(candidates.below) << 16 | __popc(candidates.at);
  }
  SumsBefore([this](int32_t w) { return t_.victims[w]; }, order_words_, t_.victims, t_.warp_sums);
}

// All lanes of the warp that handles `word`.
__device__ inline Resolver::Draw Resolver::DrawByScore(int32_t word) const {
  const Candidates candidates = CandidatesOf(word);
  const int32_t before = t_.victims[word];
  const int32_t below = (before >> 16) + __popc(candidates.below & LanesBelow());
  const int32_t at = (before & 0xffff) + __popc(candidates.at & LanesBelow());
  const bool is_drawn = (candidates.below >> Lane() & 1) != 0 ||
                        ((candidates.at >> Lane() & 1) != 0 && at < t_.limit[1]);
  return {is_drawn, below + min(at, t_.limit[1])};
}

}  // namespace kvtier::cuda
