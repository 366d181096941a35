// Newest rows that stay on the device when they are backed up: who finds them, and until when.
#include "kernels/kept_rows.h"
#include "kernels/testing/case_fixture.h"
#include "tests/golden/worked_example.h"

namespace kvtier::testing {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;

constexpr int32_t kHot = golden::kHotSize;
constexpr int32_t kKeptRow = kHot + 1;  // of region 0, where requests have one row

class KeptCases : public KernelTest {
 protected:
  static GroupOptions Options() {
    GroupOptions options = SmallAgedOptions();
    options.shape.region_count = 3;
    options.layouts = {Contiguous(32, 48), SplitPage(16, 4, 4, 96)};
    options.num_rows = 3;
    options.tracking = true;
    return options;
  }
  // The newest token of region 0 is slot 150, and has been backed up.
  Group MakeKept() const {
    Group g = MakeGroup(Options());
    KeepNewest(&g, 0, 150);
    return g;
  }
  static void KeepNewest(Group* g, int32_t region, int32_t slot) {
    g->WriteNewest(region, slot, /*salt=*/9);
    g->BackupNewest(region, slot);
  }
  // Where the next step's miss of slot 150 comes from.
  static int32_t SourceOf150(Group* g) {
    g->StepRow({150});
    EXPECT_EQ(g->plan_counts[0], 1);
    return g->plan_slots[0];
  }
};

TEST_P(KeptCases, IsCopiedFromTheDeviceInTheNextStep) {
  Group g = MakeKept();
  EXPECT_EQ(g.HotRow(1, kKeptRow), g.PatternRow(1, 150, 9));
  EXPECT_TRUE(g.IsUntouched(kKeptRow + 1, 128));
  g.WriteNewest(0, 151);  // the reserved row is the next token's
  EXPECT_THAT(g.StepRow({151, 200, 150}, /*newest=*/151),
              ElementsAre(kHot, 0, 1, -1, -1, -1, -1, -1));
  EXPECT_THAT(Ints(g.plan_slots.begin(), g.plan_slots.begin() + 2),
              ElementsAre(200, FromHotRow(kKeptRow)));
  EXPECT_THAT(Ints(g.miss_mask.begin(), g.miss_mask.begin() + 3), ElementsAre(0, 1, 1));
  EXPECT_TRUE(g.Holds(1, 150));
  EXPECT_EQ(g.Owners(0)[1], 150);
  EXPECT_EQ(g.Rise(Counter::kMisses), 2);
  EXPECT_EQ(g.Rise(Counter::kRowsCopied), 2);
  EXPECT_EQ(g.Rise(Counter::kRowsKept), 1);
  EXPECT_EQ(g.Rise(Counter::kBytesCopied), 32 + 20);  // of slot 200
}

// The host row is not read: it would be slower, and nobody could tell from the bytes.
TEST_P(KeptCases, HostRowIsNotRead) {
  Group g = MakeKept();
  g.FillHostRow(150, /*salt=*/77);
  g.topk[0] = 150;
  GetParam().swap_in(g.SwapIn());
  for (const int32_t l : {0, 1}) EXPECT_EQ(g.HotRow(l, 0), g.PatternRow(l, 150, 9)) << l;
}

TEST_P(KeptCases, FollowersCopyTheirOwnKeptRows) {
  Group g = MakeKept();
  g.topk[0] = 150;
  SwapInParams leader = g.SwapIn();
  leader.layer_count = 1;
  GetParam().swap_in(leader);
  EXPECT_EQ(g.HotRow(0, 0), g.PatternRow(0, 150, 9));
  g.FillHostRow(150, /*salt=*/77);
  ReplayPlanParams follower = g.ReplayPlan();
  follower.layers += 1;
  follower.layer_count = 1;
  GetParam().replay_plan(follower);
  EXPECT_EQ(g.HotRow(1, 0), g.PatternRow(1, 150, 9));
  EXPECT_EQ(g.counts()[Counter::kRowsKept], 1);
  EXPECT_EQ(g.counts()[Counter::kBytesCopied], 0);
}

TEST_P(KeptCases, ServesUntilTheNextBackup) {
  Group g = MakeKept();
  g.StepRow({150});
  g.StepRow(Range(90, 98));
  g.StepRow(Range(190, 198));
  g.StepRow(Range(290, 298));  // 150 is not there any more
  EXPECT_EQ(SourceOf150(&g), FromHotRow(kKeptRow));
  KeepNewest(&g, 0, 151);
  EXPECT_THAT(g.Kept(0), ElementsAre(151));
  for (const int32_t first : {90, 190, 290, 390}) g.StepRow(Range(first, first + 8));
  EXPECT_EQ(SourceOf150(&g), 150);
}

TEST_P(KeptCases, ANoteGoesWhereAnOwnerWould) {
  Group rewritten = MakeKept();
  rewritten.StepRow({}, /*newest=*/150);
  EXPECT_EQ(SourceOf150(&rewritten), 150);
  Group written = MakeKept();
  written.BackupRow(0, 150, /*salt=*/5);
  EXPECT_THAT(written.Kept(0), ElementsAre(kNone));
  EXPECT_EQ(SourceOf150(&written), 150);
  EXPECT_TRUE(written.Holds(0, 150));
  Group assigned = MakeKept();
  assigned.AssignBlocks({150 / golden::kBlockSize});
  EXPECT_EQ(assigned.Rise(Counter::kInvalidatedCopies), 1);
  EXPECT_THAT(assigned.Kept(0), ElementsAre(kNone));
  Group emptied = MakeKept();
  KeepNewest(&emptied, 1, 250);
  emptied.EmptyRegion(0);
  EXPECT_EQ(emptied.kept, Ints({kNone, 250, kNone}));
}

TEST_P(KeptCases, OthersLeaveItAlone) {
  Group g = MakeKept();
  g.BackupRow(1, 150, /*salt=*/9);  // another region's copies
  g.BackupRow(0, 151, /*salt=*/9);  // another slot
  g.AssignBlocks({9});              // another block
  g.StepRow({}, /*newest=*/149);    // another token
  g.StepRows({{1, {150}, 150}});    // another request
  EXPECT_EQ(g.kept, Ints({150, kNone, kNone}));
  // A row of the request that has no newest token, and rows that take no part.
  const Ints regions = {0, kNone, 3}, slots = {kNone, 7, 8};
  BackupParams p = g.Backup();
  p.num_rows = 3;
  p.row_to_request = regions.data();
  p.slots = slots.data();
  GetParam().backup(p);
  EXPECT_EQ(g.kept, Ints({150, kNone, kNone}));
  EXPECT_EQ(SourceOf150(&g), FromHotRow(kKeptRow));
}

// What was assigned again and not written since is zero, whatever is kept.
TEST_P(KeptCases, UnbackedRowsAreNotRead) {
  Group g = MakeKept();
  ++g.block_generation[150 / golden::kBlockSize];
  EXPECT_EQ(SourceOf150(&g), kNone);
  EXPECT_EQ(g.Rise(Counter::kUnbackedReads), 1);
  EXPECT_EQ(g.Rise(Counter::kRowsKept), 0);
  EXPECT_TRUE(g.IsZero(0));
}

TEST_P(KeptCases, RowsOfOneRequestHaveARowEach) {
  GroupOptions options = Options();
  options.shape.rows_per_request = 3;
  Group g = MakeGroup(options);
  ASSERT_EQ(g.shape().region_stride, 128);
  const int32_t newest = g.region_start(2) + kHot;
  const Ints regions = {2, 2, 2}, slots = {300, 301, 300};
  for (int32_t k = 0; k < 3; ++k) g.FillHotRow(newest + k, slots[k], static_cast<uint8_t>(k));
  g.kept = Times(9, 700);
  BackupParams p = g.Backup();
  p.num_rows = 3;
  p.row_to_request = regions.data();
  p.slots = slots.data();
  GetParam().backup(p);
  // Of two rows for one slot the later one stays, and the earlier one's kept row holds nothing.
  EXPECT_THAT(g.Kept(2), ElementsAre(kNone, 301, 300));
  EXPECT_THAT(g.Kept(1), Each(700));
  g.StepRows({{2, {300}}, {2, {301}}});
  EXPECT_EQ(g.plan_slots[0], FromHotRow(newest + 5));
  EXPECT_EQ(g.plan_slots[golden::kTopK], FromHotRow(newest + 4));
  EXPECT_EQ(g.Rise(Counter::kRowsKept), 2);
}

TEST_P(KeptCases, NothingIsKeptWithoutScoresOrNotes) {
  for (const bool aged : {false, true}) {
    GroupOptions options = Options();
    if (!aged) options.shape.policy = EvictionPolicy::kLru;
    Group g = MakeGroup(options);
    Ints notes = Times(3, 150);
    g.WriteNewest(0, 150, /*salt=*/9);
    const int32_t region = 0, slot = 150;
    BackupParams backup = g.Backup();
    backup.state.kept = aged ? nullptr : notes.data();
    backup.num_rows = 1;
    backup.row_to_request = &region;
    backup.slots = &slot;
    GetParam().backup(backup);
    EXPECT_TRUE(g.IsUntouched(kKeptRow, 128));
    g.topk[0] = 150;
    SwapInParams swap_in = g.SwapIn();
    swap_in.state.kept = backup.state.kept;
    GetParam().swap_in(swap_in);
    EXPECT_EQ(g.plan_slots[0], 150);
    EXPECT_THAT(notes, Each(150));
  }
}

// Any note is harmless: at worst the request gets other rows of its own session.
TEST_P(KeptCases, WhatIsNotedIsNoIndex) {
  for (const int32_t note : {-2, -2147483647, 2147483647, golden::kSlotCount}) {
    Group g = MakeKept();
    g.kept = Times(3, note);
    g.topk = Ints(g.topk.size(), kNone);
    g.topk[0] = 150;
    g.topk[1] = note;
    GetParam().swap_in(g.SwapIn());
    EXPECT_EQ(g.plan_slots[0], 150) << note;
    EXPECT_EQ(g.counts()[Counter::kRowsKept], 0) << note;
    g.BackupNewest(0, 150);
    g.AssignBlocks({0});
    EXPECT_EQ(g.GuardDamage(), "");
  }
}

KVTIER_INSTANTIATE(KeptCases);

}  // namespace
}  // namespace kvtier::testing
