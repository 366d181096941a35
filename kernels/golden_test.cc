// The worked example, and layouts in numbers, on every implementation.
#include "kernels/testing/case_fixture.h"
#include "tests/golden/worked_example.h"

namespace kvtier::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

class GoldenTest : public KernelTest {};

void ExpectWorkedExample(Group* g) {
  const Ints slots(golden::kSlots.begin(), golden::kSlots.end());
  EXPECT_THAT(g->StepRow(slots, golden::kNewestSlot), ElementsAreArray(golden::kHotIndices));
  EXPECT_THAT(g->miss_mask, ElementsAreArray(golden::kMissMask));
  EXPECT_EQ(g->valid_counts[0], golden::kValidCount);
  ASSERT_EQ(g->plan_counts[0], 2);
  EXPECT_THAT(Ints(g->plan_slots.begin(), g->plan_slots.begin() + 2),
              ElementsAreArray(golden::kPlanSlots));
  EXPECT_THAT(Ints(g->plan_hot_rows.begin(), g->plan_hot_rows.begin() + 2),
              ElementsAreArray(golden::kPlanHotRows));
  EXPECT_THAT(g->Owners(0), ElementsAreArray(golden::kOwnerAfter));
  EXPECT_THAT(g->Lru(0), ElementsAreArray(golden::kLruAfter));
  EXPECT_EQ(g->Rise(Counter::kHits), golden::kHits);
  EXPECT_EQ(g->Rise(Counter::kMisses), golden::kMisses);
  EXPECT_EQ(g->Rise(Counter::kNewest), golden::kNewest);
  EXPECT_EQ(g->Rise(Counter::kInvalid), golden::kInvalid);
  EXPECT_EQ(g->Rise(Counter::kEvictions), golden::kEvictions);
  EXPECT_EQ(g->Rise(Counter::kBytesCopied), 2 * golden::kRowBytes);
  EXPECT_TRUE(g->Holds(3, 700));
  EXPECT_TRUE(g->Holds(5, 1100));
}

TEST_P(GoldenTest, WorkedExample) {
  Group g = WorkedExample();
  ExpectWorkedExample(&g);
}

TEST_P(GoldenTest, WorkedExampleFromAnEmptyRegion) {
  Group g = MakeGroup(SmallOptions());
  for (int32_t step = 0; step < golden::kSetupStepCount; ++step) {
    const auto slots = golden::SetupSlots(step);
    g.StepRow({slots.begin(), slots.end()}, golden::kSetupNewestSlot);
  }
  EXPECT_THAT(g.Owners(0), ElementsAreArray(golden::kOwnerBefore));
  EXPECT_THAT(g.Lru(0), ElementsAreArray(golden::kLruBefore));
  EXPECT_EQ(g.counts()[Counter::kHits], golden::kSetupHits);
  EXPECT_EQ(g.counts()[Counter::kMisses], golden::kSetupMisses);
  ExpectWorkedExample(&g);
}

TEST_P(GoldenTest, WorkedExampleWithScores) {
  Group g = WorkedExample(SmallAgedOptions());
  const Ints slots(golden::kSlots.begin(), golden::kSlots.end());
  EXPECT_THAT(g.StepRow(slots, golden::kNewestSlot), ElementsAreArray(golden::kAgedHotIndices));
  EXPECT_THAT(g.miss_mask, ElementsAreArray(golden::kMissMask));
  ASSERT_EQ(g.plan_counts[0], 2);
  EXPECT_THAT(Ints(g.plan_slots.begin(), g.plan_slots.begin() + 2),
              ElementsAreArray(golden::kPlanSlots));
  EXPECT_THAT(Ints(g.plan_hot_rows.begin(), g.plan_hot_rows.begin() + 2),
              ElementsAreArray(golden::kAgedPlanHotRows));
  EXPECT_THAT(g.Owners(0), ElementsAreArray(golden::kAgedOwnerAfter));
  EXPECT_THAT(g.Lru(0), ElementsAreArray(golden::kAgedLruAfter));
  EXPECT_THAT(g.Scores(0), ElementsAreArray(golden::kAgedScoreAfter));
  EXPECT_EQ(g.Rise(Counter::kHits), golden::kHits);
  EXPECT_EQ(g.Rise(Counter::kMisses), golden::kMisses);
  EXPECT_TRUE(g.Holds(5, 700));
  EXPECT_TRUE(g.Holds(6, 1100));
}

// A follower layer gets the leader's rows by the plan alone.
TEST_P(GoldenTest, ReplayedPlanCopiesTheSameRows) {
  GroupOptions options = SmallOptions();
  options.layouts = {Contiguous(656), Contiguous(1152, 1168), DeepSeekV4Layout()};
  Group g = WorkedExample(options);
  SwapInParams leader = g.SwapIn();
  std::copy(golden::kSlots.begin(), golden::kSlots.end(), g.topk.begin());
  leader.layer_count = 1;
  GetParam().swap_in(leader);
  EXPECT_TRUE(g.IsUntouched(16, 128));
  ReplayPlanParams followers = g.ReplayPlan();
  followers.layers += 1;
  followers.layer_count = 2;
  GetParam().replay_plan(followers);
  for (int32_t l = 0; l < 3; ++l) {
    EXPECT_EQ(g.HotRow(l, 3), g.PatternRow(l, 150)) << l;  // 150 is no newest slot here
    EXPECT_EQ(g.HotRow(l, 1), g.PatternRow(l, 200)) << l;
    EXPECT_EQ(g.HotRow(l, 5), g.PatternRow(l, 700)) << l;
    EXPECT_EQ(g.HotRow(l, 0), g.PatternRow(l, 1100)) << l;
  }
  EXPECT_EQ(g.counts()[Counter::kBytesCopied], 3 * (656 + 1152 + 584));
  EXPECT_EQ(g.GuardDamage(), "");
}

// A plan lies in memory that others can write: what it says is checked, not believed.
TEST_P(GoldenTest, ImpossiblePlanEntriesAreHarmless) {
  GroupOptions options = SmallOptions();
  Group g = MakeGroup(options);
  g.plan_counts[0] = 100;  // more than top_k
  g.plan_slots = {5, 6, golden::kSlotCount, -2 - 128, 7, 2147483647, 8, 9};
  g.plan_hot_rows = {0, -1, 1, 2, 128, 3, -2147483647, 2147483647};
  GetParam().replay_plan(g.ReplayPlan());
  EXPECT_TRUE(g.Holds(0, 5));
  for (const int32_t row : {1, 2, 3}) EXPECT_TRUE(g.IsZero(row)) << row;
  EXPECT_TRUE(g.IsUntouched(4, 128));
  EXPECT_EQ(g.counts()[Counter::kBytesCopied], 656);
  g.plan_counts[0] = -5;
  GetParam().replay_plan(g.ReplayPlan());
  // Hot row 0, and the last number there is.
  g.plan_counts[0] = 2;
  g.plan_slots = {-2, -2147483647 - 1, 7, 7, 7, 7, 7, 7};
  g.plan_hot_rows = {4, 2, 6, 6, 6, 6, 6, 6};
  GetParam().replay_plan(g.ReplayPlan());
  EXPECT_TRUE(g.Holds(4, 5));
  EXPECT_TRUE(g.IsZero(2));
  EXPECT_EQ(g.counts()[Counter::kBytesCopied], 656);
  EXPECT_EQ(g.GuardDamage(), "");
}

KVTIER_INSTANTIATE(GoldenTest);

}  // namespace
}  // namespace kvtier::testing
