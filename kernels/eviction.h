// The scores of EvictionPolicy::kAged: how they begin, age and rise.
//
// A hot slot's score is one byte, priority * 8 + hits: how many steps have hit its row since it
// came (kScoreHitsMax counts as "or more"), and a priority that falls by one in each step of its
// request and is set anew by each hit, the higher the more hits there were. Misses take the hot
// slots with the smallest scores. So a row that is asked for now and then outlives one that was
// asked for once, and a row that nobody asks for any more is gone after some 30 steps, whatever
// it was before.
//
//   score = AgedScore(score);                   // every hot slot, in each step of its request
//   if (is_hit) score = HitScore(score);        // then
//   score = has_source ? kMissScore : kNoScore; // the hot slot that a miss takes
//
// Any byte is a valid score. Steps of the request and ResetRegion write scores, nobody else: what
// drops an owner meanwhile (invalidation, backup) leaves the score to age, as it leaves the hot
// slot its place in the order, so that it never changes what later steps choose.
// docs/adr/0011 says how the numbers were found.
#pragma once

#include <cstdint>

#include "kernels/layout.h"

namespace kvtier {

inline constexpr int32_t kScoreHitsMax = 7;          // counted in the lowest bits
inline constexpr int32_t kScoreHits = 8;             // counts of hits a priority
inline constexpr int32_t kScorePriority = 16;        // of a row that came in this step
inline constexpr int32_t kScorePriorityPerHit = 2;   // what each hit counted adds to it
inline constexpr int32_t kScorePriorityPerStep = 1;  // what each step takes from it

inline constexpr uint8_t kNoScore = 0;  // of a hot slot that a step leaves without an owner
inline constexpr uint8_t kMissScore = kScorePriority * kScoreHits;
// What an entry of the order counts as that is of no use to a miss: it is drawn last.
inline constexpr uint8_t kUnusableScore = 255;

KVTIER_HD constexpr uint8_t AgedScore(uint8_t score) {
  constexpr int32_t kStep = kScorePriorityPerStep * kScoreHits;
  return static_cast<uint8_t>(score < kStep ? score : score - kStep);
}

// `score` has aged in this step.
KVTIER_HD constexpr uint8_t HitScore(uint8_t score) {
  const int32_t before = score % kScoreHits;
  const int32_t hits = before < kScoreHitsMax ? before + 1 : kScoreHitsMax;
  return static_cast<uint8_t>((kScorePriority + kScorePriorityPerHit * hits) * kScoreHits + hits);
}

// The same for the scores in all bytes of an unsigned word.
template <typename Word>
inline constexpr Word kEachByte = static_cast<Word>(~Word{0}) / 0xff;  // times b: b in each

template <typename Word>
KVTIER_HD constexpr Word AgedScores(Word scores) {
  static_assert(kScorePriorityPerStep == 1 && kScoreHits == 8);
  constexpr Word kEach = kEachByte<Word>;
  // A priority of 1 or more carries into the highest bit of its byte, and into no other byte.
  const Word priorities = scores >> 3 & 0x1f * kEach;
  const Word positive = (priorities + 0x7f * kEach) & 0x80 * kEach;
  return scores - (positive >> 4);
}

template <typename Word>
KVTIER_HD constexpr Word HitScores(Word scores) {
  constexpr Word kEach = kEachByte<Word>;
  const Word more = (scores & kScoreHitsMax * kEach) + kEach;
  const Word hits = more - (more >> 3 & kEach);
  constexpr Word kOfHit = kScorePriorityPerHit * kScoreHits + 1;
  return kScorePriority * kScoreHits * kEach + kOfHit * hits;
}

static_assert(kScoreHits == kScoreHitsMax + 1);
static_assert((kScorePriority + kScorePriorityPerHit * kScoreHitsMax + 1) * kScoreHits <= 256);
static_assert(HitScore(kScoreHitsMax) < kUnusableScore);

}  // namespace kvtier
