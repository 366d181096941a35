// What a worker does in the ordinary case, and the worked example through the public API.

#include "server/session/node.h"

#include <algorithm>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/stats_block.h"
#include "server/session/node_fixture.h"
#include "tests/golden/worked_example.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;

class NodeTest : public NodeFixture {};

TEST_F(NodeTest, WorkerLivesAndLeavesNothing) {
  Worker worker = OpenAndAttach(SmallLayout{.layers = 2, .groups = 2}.Make());
  EXPECT_TRUE(worker.attached.created);
  ASSERT_EQ(worker.attached.segments.size(), 7u);
  const int32_t region = Admit(worker, "r1");
  EXPECT_EQ(region, 0);
  EXPECT_THAT(Assign(worker, "r1", 2).block_ids, ElementsAre(0, 1));
  ASSERT_TRUE(BackupPattern(worker, "r1", region, 70).ok());
  for (int group = 0; group < 2; ++group) {
    const OperationOutcome outcome = SwapInSlots(worker, "r1", {70}, -1, group);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status;
    ASSERT_EQ(outcome.rows.size(), 1u);
    EXPECT_EQ(outcome.rows[0].hot_indices[0], 0);
    EXPECT_TRUE(worker.memory->HotRowIs(group, 0, 70));
  }
  const auto freed = node().ReleaseRequest(worker.session, "kv", "r1", Soon());
  ASSERT_TRUE(freed.ok()) << freed.status();
  EXPECT_EQ(*freed, 2);
  const auto ended = node().DetachCache(worker.session, "kv", Soon());
  ASSERT_TRUE(ended.ok()) << ended.status();
  EXPECT_TRUE(*ended);
  worker.memory.reset();
  ExpectBaseline();
}

// The worked example, reached through the public API: rows are assigned and backed up, the setup
// steps bring the region to where the example starts.
TEST_F(NodeTest, GoldenWorkedExample) {
  Worker worker = OpenAndAttach(SmallLayout{.top_k = golden::kTopK,
                                            .hot_size = golden::kHotSize,
                                            .block_count = golden::kSlotCount / golden::kBlockSize,
                                            .block_size = golden::kBlockSize,
                                            .row_bytes = golden::kRowBytes}
                                    .Make());
  const int32_t region = Admit(worker, "r1");
  ASSERT_EQ(region, 0);
  Assign(worker, "r1", golden::kSlotCount / golden::kBlockSize);
  for (const int32_t slot : golden::kOwnerBefore) {
    ASSERT_TRUE(BackupPattern(worker, "r1", region, slot).ok());
  }
  for (const int32_t slot : golden::kPlanSlots) {
    ASSERT_TRUE(BackupPattern(worker, "r1", region, slot).ok());
  }
  for (int32_t step = 0; step < golden::kSetupStepCount; ++step) {
    const auto slots = golden::SetupSlots(step);
    ASSERT_TRUE(SwapInSlots(worker, "r1", {slots.begin(), slots.end()}, golden::kSetupNewestSlot)
                    .status.ok());
  }
  const Counts before = Total();
  EXPECT_EQ(before[Counter::kHits], golden::kSetupHits);
  EXPECT_EQ(before[Counter::kMisses], golden::kSetupMisses);
  EXPECT_THAT(worker.memory->Owner(0, region), ElementsAreArray(golden::kOwnerBefore));
  EXPECT_THAT(worker.memory->Lru(0, region), ElementsAreArray(golden::kLruBefore));

  const OperationOutcome outcome = SwapInSlots(
      worker, "r1", {golden::kSlots.begin(), golden::kSlots.end()}, golden::kNewestSlot);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  const SwapInRowOutput& row = outcome.rows.at(0);
  EXPECT_THAT(row.hot_indices, ElementsAreArray(golden::kHotIndices));
  EXPECT_THAT(row.miss_mask, ElementsAreArray(golden::kMissMask));
  EXPECT_EQ(row.valid_count, golden::kValidCount);
  EXPECT_THAT(row.plan_slots, ElementsAreArray(golden::kPlanSlots));
  EXPECT_THAT(row.plan_hot_rows, ElementsAreArray(golden::kPlanHotRows));
  EXPECT_THAT(worker.memory->Owner(0, region), ElementsAreArray(golden::kOwnerAfter));
  EXPECT_THAT(worker.memory->Lru(0, region), ElementsAreArray(golden::kLruAfter));
  const Counts after = Total();
  EXPECT_EQ(after[Counter::kHits] - before[Counter::kHits], golden::kHits);
  EXPECT_EQ(after[Counter::kMisses] - before[Counter::kMisses], golden::kMisses);
  EXPECT_EQ(after[Counter::kNewest] - before[Counter::kNewest], golden::kNewest);
  EXPECT_EQ(after[Counter::kInvalid] - before[Counter::kInvalid], golden::kInvalid);
  EXPECT_EQ(after[Counter::kEvictions] - before[Counter::kEvictions], golden::kEvictions);
  EXPECT_EQ(after[Counter::kUnbackedReads], 0);
  for (size_t i = 0; i < golden::kOwnerAfter.size(); ++i) {
    EXPECT_TRUE(worker.memory->HotRowIs(0, static_cast<int32_t>(i), golden::kOwnerAfter[i])) << i;
  }
  worker.memory.reset();
  ExpectBaseline();
}

// Where the host cannot read the device's memory: counters come back with each operation, and
// with each look at them for the next one.
class NodeMirrorTest : public NodeFixture {
 protected:
  NodeMirrorTest() : NodeFixture({.claims_cuda = true}) {}
};

TEST_F(NodeMirrorTest, CountersWithoutReadingDeviceMemory) {
  Worker worker = OpenAndAttach(SmallLayout{.groups = 2}.Make());
  const int32_t region = Admit(worker, "r");
  Assign(worker, "r", 1);
  ASSERT_TRUE(BackupPattern(worker, "r", region, 3).ok());
  EXPECT_EQ(Total()[Counter::kBackedUpRows], 2);
  ASSERT_TRUE(SwapInSlots(worker, "r", {3, 4}, -1, 1).status.ok());
  EXPECT_EQ(Stats().groups[1][Counter::kMisses], 2);
  EXPECT_EQ(Stats().groups[0][Counter::kMisses], 0);
  // A worker's own kernels count too.
  const auto& extent = worker.memory->geometry().groups[0].stats;
  auto* const block = reinterpret_cast<StatsBlock*>(
      const_cast<uint8_t*>(worker.memory->segment(SegmentKind::kState)) + extent.offset_bytes);
  Counts counts;
  counts[Counter::kHits] = 5;
  AddCounts(block, counts);
  while (Total()[Counter::kHits] < 5) std::this_thread::yield();
  // The last look, when the session leaves.
  AddCounts(block, counts);
  ASSERT_TRUE(node().DetachCache(worker.session, "kv", Soon()).ok());
  EXPECT_EQ(node().Snapshot("")->total[Counter::kHits], 10);
  worker.memory.reset();
  ExpectBaseline();
}

}  // namespace
}  // namespace kvtier
