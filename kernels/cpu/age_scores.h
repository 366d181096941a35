// The scores of a region, all at a time. Private to this folder.
#pragma once

#include <cstdint>
#include <cstring>

#include "kernels/eviction.h"

namespace kvtier::cpu {

// AgedScore() of all of them, eight at a time.
inline void AgeAll(uint8_t* scores, int32_t count) {
  int32_t h = 0;
  for (; h + 8 <= count; h += 8) {
    uint64_t eight = 0;
    std::memcpy(&eight, scores + h, sizeof(eight));
    eight = AgedScores(eight);
    std::memcpy(scores + h, &eight, sizeof(eight));
  }
  for (; h < count; ++h) scores[h] = AgedScore(scores[h]);
}

// The same, and HitScore() of those where `hits` [count] is 1. Other bytes of it are 0.
inline void AgeAllAndHits(const uint8_t* hits, uint8_t* scores, int32_t count) {
  for (int32_t h = 0; h < count; ++h) {  // vectors of bytes
    const uint8_t score = scores[h];
    const auto aged = static_cast<uint8_t>(score < kScoreHits ? score : score - kScoreHits);
    const auto before = static_cast<uint8_t>(aged & kScoreHitsMax);
    const auto counted = static_cast<uint8_t>(before < kScoreHitsMax ? before + 1 : before);
    const auto times_16 = static_cast<uint8_t>(counted << 4);
    const auto hit = static_cast<uint8_t>(kMissScore + times_16 + counted);
    scores[h] = hits[h] != 0 ? hit : aged;
  }
}
static_assert(kScorePriorityPerStep == 1 && kScorePriorityPerHit * kScoreHits == 16 &&
              kMissScore == kScorePriority * kScoreHits);

}  // namespace kvtier::cpu
