// Which hot slots misses take where there are scores, and who writes a score.
#include "kernels/eviction.h"
#include "kernels/region_index.h"
#include "kernels/testing/case_fixture.h"
#include "tests/golden/worked_example.h"

namespace kvtier::testing {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Ge;
using ::testing::Lt;

class EvictionCases : public KernelTest {
 protected:
  // One region of 8 hot slots, top_k 8; hot slot h owns slot 10 + h, in this order.
  Group MakeFull(const Ints& scores) const {
    GroupOptions options = SmallAgedOptions();
    options.shape.hot_size = 8;
    Group g = MakeGroup(options);
    for (int32_t h = 0; h < 8; ++h) {
      g.owner[h] = 10 + h;
      g.score[h] = static_cast<uint8_t>(scores[h]);
      g.FillHotRow(h, 10 + h);
    }
    return g;
  }
  static Ints FirstOf(const Ints& all, int32_t count) { return {all.begin(), all.begin() + count}; }
};

TEST_P(EvictionCases, AScoreAgesRisesAndBegins) {
  Group g = MakeFull({200, 128, 7, 8, 247, 130, 0, 0});
  g.lru = {6, 0, 1, 2, 3, 4, 5, 7};
  // 10 and 14 are hits, 90 is a miss: it takes the oldest of the three that are worth nothing.
  EXPECT_THAT(FirstOf(g.StepRow({10, 14, 90}), 3), ElementsAre(0, 4, 6));
  EXPECT_THAT(g.Scores(0), ElementsAre(128 + 17 * 1, 120, 7, 0, 247, 122, kMissScore, 0));
  // Hits count up to seven.
  for (int32_t hits = 2; hits < 10; ++hits) {
    g.StepRow({10});
    EXPECT_EQ(g.Scores(0)[0], 128 + 17 * std::min(hits, 7)) << hits;
  }
  // One priority a step; the hits stay.
  g.StepRow({});
  EXPECT_EQ(g.Scores(0)[0], 239);
  for (int32_t step = 0; step < 40; ++step) g.StepRow({});
  EXPECT_EQ(g.Scores(0)[0], 7);
}

TEST_P(EvictionCases, TheCheapestGoInTheOrderOfTheWalk) {
  Group g = MakeFull({100, 60, 100, 30, 100, 20, 100, 60});
  // The cheapest three are 5, 3 and, of 1 and 7, the older one; misses take them oldest first.
  EXPECT_THAT(FirstOf(g.StepRow({90, 91, 92}), 3), ElementsAre(1, 3, 5));
  EXPECT_THAT(g.Lru(0), ElementsAre(0, 2, 4, 6, 7, 1, 3, 5));
  EXPECT_EQ(g.Rise(Counter::kEvictions), 3);
}

TEST_P(EvictionCases, EqualScoresAreLru) {
  for (const int32_t score : {0, 1, 77, 128, 255}) {
    Group aged = MakeFull(Times(8, score));
    GroupOptions options = SmallOptions();
    options.shape.hot_size = 8;
    Group lru = MakeGroup(options);
    lru.owner = aged.owner;
    for (int32_t h = 0; h < 8; ++h) lru.FillHotRow(h, 10 + h);
    const Ints topk = {12, 90, 17, 91, 92};
    EXPECT_EQ(aged.StepRow(topk), lru.StepRow(topk)) << score;
    EXPECT_EQ(aged.Lru(0), lru.Lru(0)) << score;
    EXPECT_TRUE(lru.Scores(0).empty());
  }
}

TEST_P(EvictionCases, EmptyHotSlotsGoFirst) {
  Group g = MakeFull({20, 20, 20, 20, 20, 20, 20, 20});
  g.owner[3] = g.owner[6] = kNone;
  g.score[3] = g.score[6] = kNoScore;
  EXPECT_THAT(FirstOf(g.StepRow({90, 91}), 2), ElementsAre(3, 6));
  EXPECT_EQ(g.Rise(Counter::kEvictions), 0);
}

TEST_P(EvictionCases, AsManyMissesAsHotSlots) {
  Group g = MakeFull({3, 1, 4, 1, 5, 9, 2, 6});
  EXPECT_EQ(g.StepRow(Range(90, 98)), Range(0, 8));
  EXPECT_THAT(g.Scores(0), Each(kMissScore));
}

TEST_P(EvictionCases, WhatAStepLeavesWithoutAnOwnerIsWorthNothing) {
  Group g = MakeFull(Times(8, 200));
  g.StepRow({}, /*newest=*/12);  // is being rewritten
  EXPECT_EQ(g.Owners(0)[2], kNone);
  EXPECT_THAT(g.Scores(0), ElementsAre(192, 192, 0, 192, 192, 192, 192, 192));
  g.StepRow({golden::kSlotCount + 5});  // takes 2, and has no source
  EXPECT_EQ(g.Rise(Counter::kUnsourced), 1);
  EXPECT_THAT(g.Scores(0), ElementsAre(184, 184, 0, 184, 184, 184, 184, 184));
}

// Others may drop owners at any time: it must not matter when.
TEST_P(EvictionCases, WhoDropsAnOwnerLeavesItsScore) {
  Group g = MakeFull({20, 30, 40, 50, 60, 70, 80, 90});
  g.BackupNewest(0, 15);
  EXPECT_EQ(g.Owners(0)[5], kNone);
  g.AssignBlocks({0});  // slots 0 to 63
  EXPECT_THAT(g.Owners(0), Each(kNone));
  EXPECT_THAT(g.Scores(0), ElementsAre(20, 30, 40, 50, 60, 70, 80, 90));
  EXPECT_EQ(g.StepRow({90})[0], 0);
}

TEST_P(EvictionCases, AnEmptyRegionHasNoScoresAndNoIndex) {
  GroupOptions options = SmallAgedOptions();
  options.shape.region_count = 3;
  Group g = MakeGroup(options);
  const int32_t hot = golden::kHotSize;
  const int32_t words = RegionIndexLength(hot);
  std::vector<uint16_t> index(int64_t{3} * words, 7);
  std::fill(g.score.begin(), g.score.end(), uint8_t{9});
  ResetRegionParams p = g.ResetRegion(1);
  p.state.index = index.data();
  GetParam().reset_region(p);
  for (const int32_t region : {0, 1, 2}) {
    EXPECT_EQ(g.Scores(region), Times(hot, region == 1 ? 0 : 9)) << region;
    const auto first = index.begin() + int64_t{region} * words;
    EXPECT_THAT(std::vector<uint16_t>(first, first + words), Each(region == 1 ? 0 : 7)) << region;
  }
}

// What misses cannot use they draw when nothing else is left, whatever is written there.
TEST_P(EvictionCases, CorruptEntriesAreDrawnLast) {
  for (const int16_t entry : {8, -1, 32767, 5}) {
    Group g = MakeFull({10, 20, 30, 40, 50, 255, 70, 80});
    g.lru[0] = entry;  // nothing, or 5 for the first time: then the later one is of no use
    EXPECT_EQ(g.StepRow({90})[0], 1);
    EXPECT_EQ(g.Rise(Counter::kStateRepairs), 0);
    g.StepRow(Range(91, 99));
    EXPECT_EQ(g.Rise(Counter::kMisses), 8);
    EXPECT_EQ(g.Rise(Counter::kStateRepairs), 1);
    EXPECT_EQ(g.Rise(Counter::kUnplaced), 1);
    EXPECT_EQ(g.GuardDamage(), "");
  }
}

// An order that names some hot slots twice, others never, and has the sums of a permutation. Of the
// cheapest hot slots none stands in it: there are fewer to draw than were counted.
TEST_P(EvictionCases, ForgedOrderLeadsNowhere) {
  GroupOptions options = SmallAgedOptions();
  options.shape.hot_size = 10;
  Group g = MakeGroup(options);
  for (int32_t h = 0; h < 10; ++h) {
    g.owner[h] = 10 + h;
    g.score[h] = h == 0 || h == 5 || h == 8 ? 0 : 100;
    g.FillHotRow(h, 10 + h);
  }
  g.lru = {2, 1, 2, 3, 4, 2, 6, 7, 9, 9};
  for (int32_t step = 0; step < 3; ++step) {
    EXPECT_THAT(g.StepRow({90 + 4 * step, 91 + 4 * step, 92 + 4 * step}),
                Each(AllOf(Ge(-1), Lt(10))));
    EXPECT_THAT(g.Lru(0), Each(AllOf(Ge(0), Lt(10)))) << step;
    EXPECT_EQ(g.GuardDamage(), "");
  }
}

TEST_P(EvictionCases, RowsOfOneRequestAreOneStep) {
  GroupOptions options = SmallAgedOptions();
  options.shape.rows_per_request = 2;
  options.num_rows = 2;
  Group g = MakeGroup(options);
  g.StepRows({{0, {90, 91}}, {0, {91, 92}}});
  g.StepRows({{0, {90}}, {0, {90, 92}}});
  EXPECT_EQ(g.Scores(0)[0], 128 + 17);
  EXPECT_EQ(g.Scores(0)[1], kMissScore - 8);
  EXPECT_EQ(g.Scores(0)[2], 128 + 17);
}

KVTIER_INSTANTIATE(EvictionCases);

}  // namespace
}  // namespace kvtier::testing
