#include "kernels/eviction.h"

#include <gtest/gtest.h>

#include <cstdint>

namespace kvtier {
namespace {

// A word of `score` between neighbours that would show a carry.
template <typename Word>
Word Between(uint32_t score, uint32_t neighbour) {
  Word word = 0;
  for (size_t byte = 0; byte < sizeof(Word); ++byte) {
    word |= Word{byte % 2 == 0 ? score : neighbour} << 8 * byte;
  }
  return word;
}

template <typename Word>
void ExpectEachByteIsTheScoreAlone() {
  for (const uint32_t neighbour : {0u, 7u, 8u, 0x80u, 0xffu}) {
    for (uint32_t score = 0; score <= 0xff; ++score) {
      const auto word = Between<Word>(score, neighbour);
      EXPECT_EQ(AgedScores(word), Between<Word>(AgedScore(static_cast<uint8_t>(score)),
                                                AgedScore(static_cast<uint8_t>(neighbour))))
          << score << " beside " << neighbour;
      EXPECT_EQ(HitScores(word), Between<Word>(HitScore(static_cast<uint8_t>(score)),
                                               HitScore(static_cast<uint8_t>(neighbour))))
          << score << " beside " << neighbour;
    }
  }
}

TEST(EvictionTest, ScoresOfAWordAreThoseOfItsBytes) {
  ExpectEachByteIsTheScoreAlone<uint32_t>();
  ExpectEachByteIsTheScoreAlone<uint64_t>();
}

TEST(EvictionTest, AHitRaisesAndTimeLowers) {
  uint8_t score = kMissScore;
  EXPECT_LT(AgedScore(score), score);
  for (int32_t hits = 1; hits <= kScoreHitsMax; ++hits) {
    const uint8_t before = score;
    score = HitScore(AgedScore(score));
    EXPECT_GT(score, before) << hits << " hits";
  }
  EXPECT_EQ(HitScore(AgedScore(score)), score);  // no hit counts beyond these
  EXPECT_LT(score, kUnusableScore);
}

TEST(EvictionTest, WithoutHitsAScoreEndsAtNoPriority) {
  uint8_t score = kMissScore;
  for (int32_t step = 0; step < 256; ++step) score = AgedScore(score);
  EXPECT_LT(score, kScoreHits);
}

}  // namespace
}  // namespace kvtier
