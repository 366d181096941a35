// Faults seen in systems of this kind, as tests: what regions remember, and for how long.
#include "kernels/testing/case_fixture.h"

namespace kvtier::testing {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

class StateCases : public KernelTest {};

// The order and the owners lie in shared memory. What a stray writer leaves there is never an
// index: the miss that draws it gets nothing, everything else goes on.
TEST_P(StateCases, K06_CorruptedOrder) {
  for (const int16_t entry : {13, 8, -1, 32767, -32768}) {
    GroupOptions options = SmallOptions();
    options.shape.hot_size = 8;
    options.shape.region_count = 3;
    Group g = MakeGroup(options);
    g.lru[8] = entry;  // the oldest of region 1
    const int32_t base = g.shape().region_stride;
    const Ints out = g.StepRows({{1, Range(100, 108)}});
    EXPECT_THAT(
        out, ElementsAre(-1, base + 1, base + 2, base + 3, base + 4, base + 5, base + 6, base + 7));
    EXPECT_THAT(g.miss_mask, ElementsAre(0, 1, 1, 1, 1, 1, 1, 1));
    EXPECT_THAT(g.valid_counts, ElementsAre(7));
    EXPECT_EQ(g.plan_slots[0], kNone);
    EXPECT_EQ(g.plan_hot_rows[0], kNone);
    EXPECT_EQ(g.Rise(Counter::kStateRepairs), 1);
    EXPECT_EQ(g.Rise(Counter::kUnplaced), 1);
    EXPECT_EQ(g.Rise(Counter::kMisses), 8);
    EXPECT_EQ(g.Rise(Counter::kRowsCopied), 7);
    EXPECT_EQ(g.lru[8], entry);  // stays where the misses are
    EXPECT_TRUE(g.IsUntouched(0, base + 1));
    EXPECT_TRUE(g.IsUntouched(base + 8, 3 * base));
    EXPECT_EQ(g.GuardDamage(), "");

    g.EmptyRegion(1);  // the next request of the region is not concerned
    EXPECT_EQ(g.Lru(1), Range(0, 8));
    EXPECT_THAT(g.StepRows({{1, Range(100, 108)}}), Each(::testing::Ge(base)));
    EXPECT_EQ(g.Rise(Counter::kStateRepairs), 0);
  }
}

// A corrupt entry that no miss draws does no harm and is not counted.
TEST_P(StateCases, K06_CorruptedButNotDrawn) {
  Group g = WorkedExample();
  g.lru[8] = 77;
  EXPECT_THAT(g.StepRow({200, 700}), ElementsAre(1, 3, -1, -1, -1, -1, -1, -1));
  EXPECT_EQ(g.Rise(Counter::kStateRepairs), 0);
  EXPECT_EQ(g.Lru(0)[6], 77);
}

// An entry that stands in the order twice would give one hot row to two rows.
TEST_P(StateCases, K06_RepeatedEntry) {
  GroupOptions options = SmallOptions();
  options.shape.hot_size = 8;
  Group g = MakeGroup(options);
  g.lru = {4, 1, 4, 3, 1, 5, 6, 7};
  EXPECT_THAT(g.StepRow(Range(100, 106)), ElementsAre(4, 1, -1, 3, -1, 5, -1, -1));
  EXPECT_EQ(g.Rise(Counter::kStateRepairs), 2);
  EXPECT_THAT(g.Copied(), ElementsAre(100, 101, 103, 105));
  EXPECT_TRUE(g.Holds(4, 100));
  EXPECT_TRUE(g.Holds(1, 101));
}

// A slot that two hot slots own (corruption) is hit once, at the older one.
TEST_P(StateCases, K06_SlotOwnedTwice) {
  Group g = WorkedExample();
  g.owner[5] = 200;
  EXPECT_THAT(g.StepRow({200, 700, 200}), ElementsAre(1, 3, 1, -1, -1, -1, -1, -1));
  EXPECT_EQ(g.Rise(Counter::kHits), 1);
}

TEST_P(StateCases, K06_ProductionShapes) {
  for (const int32_t hot_size : {4096, 10240}) {
    GroupOptions options = SmallOptions();
    options.shape.top_k = 2048;
    options.shape.hot_size = hot_size;
    options.layouts = {Contiguous(16)};
    Group g = MakeGroup(options);
    EXPECT_EQ(g.StepRow(Range(0, 2048)), Range(0, 2048));
    EXPECT_EQ(g.Lru(0), Join({Range(2048, hot_size), Range(0, 2048)}));
  }
}

// A row that is written again: no older copy of it may be found.
TEST_P(StateCases, K07_StaleCopyAfterWrite) {
  for (const bool step_first : {true, false}) {
    Group g = WorkedExample();
    g.WriteNewest(0, 200, /*salt=*/77);
    if (step_first) {
      // The walk drops the copy, as the row is the newest one of this step.
      EXPECT_THAT(g.StepRow({200, 300}, 200), ElementsAre(16, 2, -1, -1, -1, -1, -1, -1));
      EXPECT_EQ(g.owner[1], kNone);
      EXPECT_THAT(g.Lru(0), ElementsAre(3, 1, 5, 0, 7, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15, 2));
      g.BackupNewest(0, 200);
    } else {
      // The backup drops it, and the step sees that.
      g.BackupNewest(0, 200);
      EXPECT_EQ(g.owner[1], kNone);
      EXPECT_THAT(g.StepRow({200, 300}, 200), ElementsAre(16, 2, -1, -1, -1, -1, -1, -1));
    }
    EXPECT_THAT(g.StepRow({200, 300, 201}, 201), ElementsAre(3, 2, 16, -1, -1, -1, -1, -1));
    EXPECT_THAT(g.Copied(), ElementsAre(200));
    EXPECT_EQ(g.HotRow(0, 3), g.PatternRow(0, 200, /*salt=*/77));
  }
}

// Blocks change hands: what the region still has of them belongs to somebody else.
TEST_P(StateCases, K10_RecycledBlocks) {
  Group g = WorkedExample();
  g.AssignBlocks({4, 12});
  EXPECT_EQ(g.Rise(Counter::kInvalidatedCopies), 2);
  g.BackupRow(kNone, 300, /*salt=*/9);
  g.BackupRow(kNone, 800, /*salt=*/9);
  EXPECT_THAT(g.StepRow({300, 800, 200}, 150), ElementsAre(3, 5, 1, -1, -1, -1, -1, -1));
  EXPECT_THAT(g.Copied(), ElementsAre(300, 800));
  EXPECT_THAT(g.Lru(0), ElementsAre(0, 7, 2, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15, 3, 5, 1));
  EXPECT_EQ(g.HotRow(0, 3), g.PatternRow(0, 300, 9));
  EXPECT_EQ(g.HotRow(0, 5), g.PatternRow(0, 800, 9));
}

TEST_P(StateCases, K10_InvalidateManyBlocksAndNone) {
  Group g = WorkedExample();
  g.AssignBlocks({});
  EXPECT_EQ(g.Rise(Counter::kInvalidatedCopies), 0);
  g.AssignBlocks({31, 4, 4, 1, 0});  // in no order, one twice; 1, 0 and 31 hold 100 alone
  EXPECT_EQ(g.Rise(Counter::kInvalidatedCopies), 2);
  EXPECT_EQ(g.owner[0], kNone);
  EXPECT_EQ(g.owner[2], kNone);
  g.AssignBlocks(Range(0, 32));
  EXPECT_EQ(g.Rise(Counter::kInvalidatedCopies), 14);
  EXPECT_THAT(g.owner, Each(kNone));
}

// A shared prefix has a copy in every region: one call reaches them all.
TEST_P(StateCases, K11_SharedBlockInManyRegions) {
  GroupOptions options = SmallOptions();
  options.shape.top_k = 3;
  options.shape.hot_size = 4;
  options.shape.region_count = 2;
  options.num_rows = 2;
  Group g = MakeGroup(options);
  ASSERT_EQ(g.shape().region_stride, 128);
  g.StepRows({{0, {70, 71, -1}}, {1, {70, 71, -1}}});
  EXPECT_EQ(g.Rise(Counter::kMisses), 4);
  g.AssignBlocks({1});
  EXPECT_EQ(g.Rise(Counter::kInvalidatedCopies), 4);
  EXPECT_THAT(g.owner, Each(kNone));
  g.StepRows({{0, {70}}, {1, {71}}});
  EXPECT_THAT(g.Copied(), ElementsAre(70, 71));
}

// A region's next request starts with nothing of the last one's.
TEST_P(StateCases, K12_StateResetOnReadmission) {
  GroupOptions options = SmallOptions();
  options.shape.top_k = 3;
  options.shape.hot_size = 4;
  options.shape.region_count = 2;
  Group g = MakeGroup(options);
  g.StepRow({10, 11, 12});
  g.StepRows({{1, {20, 21, 22}}});
  g.EmptyRegion(0);
  EXPECT_THAT(g.Owners(0), Each(kNone));
  EXPECT_EQ(g.Lru(0), Range(0, 4));
  EXPECT_THAT(g.Owners(1), ElementsAre(20, 21, 22, kNone));  // not concerned
  g.StepRow({10, 11, -1}, 99);
  EXPECT_THAT(g.Copied(), ElementsAre(10, 11));
  EXPECT_EQ(g.Rise(Counter::kHits), 0);
  const Ints owner = g.owner;
  g.EmptyRegion(2);  // there is none
  g.EmptyRegion(-1);
  EXPECT_EQ(g.owner, owner);
}

// Batch rows come in any order; the region is who somebody is.
TEST_P(StateCases, K13_RequestIsNotItsBatchRow) {
  GroupOptions options = SmallOptions();
  options.shape.top_k = 3;
  options.shape.hot_size = 4;
  options.shape.region_count = 2;
  options.num_rows = 2;
  Group g = MakeGroup(options);
  EXPECT_THAT(g.StepRows({{0, {10, 11}, 19}, {1, {50, 51}, 59}}),
              ElementsAre(0, 1, -1, 128, 129, -1));
  EXPECT_THAT(g.StepRows({{1, {51, 50}, 60}, {0, {11, 12, 10}, 20}}),
              ElementsAre(129, 128, -1, 1, 2, 0));
  EXPECT_THAT(g.Copied(), ElementsAre(12));
  g.StepRows({{0, {10, 11, 12}, 21}});
  EXPECT_THAT(g.Copied(), IsEmpty());
  g.StepRows({{1, {50, 51}, 61}});
  EXPECT_THAT(g.Copied(), IsEmpty());
  // The same request in two rows of a batch: the second one is refused, and nothing breaks.
  EXPECT_THAT(g.StepRows({{0, {10, 11}, 21}, {0, {12}, 22}}), ElementsAre(0, 1, -1, -1, -1, -1));
  EXPECT_EQ(g.Rise(Counter::kRejectedRows), 1);
}

// As many lookups as hot slots is an ordinary case; more is refused above this floor, and if it
// comes here all the same no two rows share a hot slot.
TEST_P(StateCases, K14_WorkingSetOfTheBuffer) {
  GroupOptions options = SmallOptions();
  options.shape.hot_size = 8;
  Group g = MakeGroup(options);
  EXPECT_EQ(g.StepRow(Range(10, 18)), Range(0, 8));
  EXPECT_EQ(g.StepRow(Range(20, 28), 100), Range(0, 8));
  EXPECT_EQ(g.Rise(Counter::kMisses), 8);
  EXPECT_EQ(g.Lru(0), Range(0, 8));
  EXPECT_THAT(g.StepRow({27, 10, 25, 11, 23, 12, 21, 13}, 101),
              ElementsAre(7, 0, 5, 2, 3, 4, 1, 6));

  options.shape.top_k = 6;
  options.shape.hot_size = 4;
  Group small = MakeGroup(options);
  small.StepRow({1, 2});
  EXPECT_THAT(small.StepRow({1, 2, 30, 31, 32, 33}), ElementsAre(0, 1, 2, 3, -1, -1));
  EXPECT_EQ(small.Rise(Counter::kUnplaced), 2);
  EXPECT_EQ(small.Rise(Counter::kStateRepairs), 0);
}

KVTIER_INSTANTIATE(StateCases);

}  // namespace
}  // namespace kvtier::testing
