// Blocks and regions that change hands, rows that are read too early: nobody sees another's rows.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"
#include "tests/golden/worked_example.h"

namespace kvtier {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Not;
using ::testing::UnorderedElementsAre;
using Code = absl::StatusCode;

class NodeRecycleTest : public NodeFixture {
 protected:
  std::vector<int32_t> HotIndices(const Worker& worker, const std::string& request,
                                  std::vector<int32_t> slots, int32_t newest) {
    const OperationOutcome outcome = SwapInSlots(worker, request, std::move(slots), newest);
    EXPECT_TRUE(outcome.status.ok()) << outcome.status;
    return outcome.rows.empty() ? std::vector<int32_t>() : outcome.rows[0].hot_indices;
  }
};

TEST_F(NodeRecycleTest, K10_RecycledBlocksAreNotServedStale) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  const int32_t a = Admit(worker, "A");
  Assign(worker, "A", 32);
  for (const int32_t slot : golden::kOwnerBefore) {
    ASSERT_TRUE(BackupPattern(worker, "A", a, slot).ok());
  }
  for (int32_t step = 0; step < golden::kSetupStepCount; ++step) {
    const auto slots = golden::SetupSlots(step);
    HotIndices(worker, "A", {slots.begin(), slots.end()}, golden::kSetupNewestSlot);
  }
  // Blocks 4 (slots 256..319) and 12 (768..831) go to B, which writes 300 and 800 anew.
  ASSERT_TRUE(node().FreeBlocks(worker.session, "kv", "A", {4, 12}, Soon()).ok());
  const int32_t b = Admit(worker, "B");
  const AssignResult assigned = Assign(worker, "B", 2);
  EXPECT_THAT(assigned.block_ids, UnorderedElementsAre(4, 12));
  EXPECT_THAT(assigned.generations, Each(2));
  EXPECT_EQ(assigned.invalidated_copies, 2);
  ASSERT_TRUE(BackupPattern(worker, "B", b, 300, /*salt=*/0xB0).ok());
  ASSERT_TRUE(BackupPattern(worker, "B", b, 800, /*salt=*/0xB0).ok());

  EXPECT_THAT(HotIndices(worker, "A", {300, 800, 200, -1, -1, -1, -1, -1}, 150),
              ElementsAre(3, 5, 1, -1, -1, -1, -1, -1));
  EXPECT_THAT(worker.memory->Lru(0, a),
              ElementsAre(0, 7, 2, 4, 6, 8, 9, 10, 11, 12, 13, 14, 15, 3, 5, 1));
  EXPECT_TRUE(worker.memory->HotRowIs(0, 3, 300, 0xB0));
  EXPECT_TRUE(worker.memory->HotRowIs(0, 5, 800, 0xB0));
  EXPECT_TRUE(worker.memory->HotRowIs(0, 1, 200));
}

TEST_F(NodeRecycleTest, K11_SharedBlocksAreDroppedInEveryRegionOfEverySession) {
  const CacheLayout layout =
      SmallLayout{.top_k = 3, .hot_size = 4, .block_count = 4, .max_requests = 3}.Make();
  Worker one = OpenAndAttach(layout), two = OpenAndAttach(layout);
  EXPECT_FALSE(two.attached.created);
  const int32_t a = Admit(one, "A"), b = Admit(one, "B");
  EXPECT_EQ(ShapeOf(layout, 0).region_stride, 128);
  Assign(one, "A", 2);
  Assign(one, "B", 0, {1});
  for (const int32_t slot : {70, 71}) ASSERT_TRUE(BackupPattern(one, "A", a, slot).ok());
  EXPECT_THAT(HotIndices(one, "A", {70, 71, -1}, -1), ElementsAre(0, 1, -1));
  EXPECT_THAT(HotIndices(one, "B", {70, 71, -1}, -1), ElementsAre(128, 129, -1));
  // The other session's request shares it as well.
  const int32_t other = Admit(two, "A");
  Assign(two, "A", 0, {1});
  EXPECT_THAT(HotIndices(two, "A", {70, -1, -1}, -1), ElementsAre(0, -1, -1));

  ASSERT_TRUE(node().FreeBlocks(one.session, "kv", "A", {0, 1}, Soon()).ok());
  ASSERT_TRUE(node().FreeBlocks(one.session, "kv", "B", {1}, Soon()).ok());
  EXPECT_EQ(Stats().blocks_used, 1) << "its last holder is in another session";
  ASSERT_TRUE(node().FreeBlocks(two.session, "kv", "A", {1}, Soon()).ok());
  WaitForQuarantine();
  const int32_t c = Admit(one, "C");
  const AssignResult assigned = Assign(one, "C", 4);
  EXPECT_THAT(assigned.block_ids, Contains(1));
  EXPECT_EQ(assigned.invalidated_copies, 5);
  EXPECT_EQ(Total()[Counter::kInvalidatedCopies], 5);
  for (const int32_t region : {a, b}) {
    EXPECT_THAT(one.memory->Owner(0, region), Each(kNone));
  }
  EXPECT_THAT(two.memory->Owner(0, other), Each(kNone));
  ASSERT_TRUE(BackupPattern(one, "C", c, 70, 0xC0).ok());
  HotIndices(one, "A", {70, -1, -1}, -1);
  EXPECT_EQ(Total()[Counter::kRowsCopied], 6) << "copied again";
}

TEST_F(NodeRecycleTest, K11_InvalidateBlocksReachesEverySession) {
  const CacheLayout layout = SmallLayout{.groups = 2}.Make();
  Worker one = OpenAndAttach(layout), two = OpenAndAttach(layout);
  const int32_t region = Admit(one, "r");
  Admit(two, "r");
  Assign(one, "r", 1);
  Assign(two, "r", 0, {0});
  ASSERT_TRUE(BackupPattern(one, "r", region, 5).ok());
  for (const int group : {0, 1}) {
    SwapInSlots(one, "r", {5}, -1, group);
    SwapInSlots(two, "r", {5}, -1, group);
  }
  const auto dropped = node().InvalidateBlocks(one.session, "kv", {0}, Soon());
  ASSERT_TRUE(dropped.ok()) << dropped.status();
  EXPECT_EQ(*dropped, 4);
  EXPECT_THAT(two.memory->Owner(1, 0), Each(kNone));
  // Still assigned and backed: the next step finds the row.
  SwapInSlots(two, "r", {5}, -1);
  EXPECT_TRUE(two.memory->HotRowIs(0, 0, 5));
  const auto invalidate = [&](const std::vector<int32_t>& blocks) {
    return node().InvalidateBlocks(one.session, "kv", blocks, Soon()).status();
  };
  EXPECT_TRUE(IsError(invalidate({}), Code::kInvalidArgument, "FIELD_INVALID"));
  EXPECT_TRUE(IsError(invalidate({0, 32}), Code::kInvalidArgument, "BLOCK_OUT_OF_RANGE"));
  EXPECT_TRUE(IsError(invalidate({0, 1}), Code::kFailedPrecondition, "BLOCK_NOT_ASSIGNED"));
}

TEST_F(NodeRecycleTest, K12_ARegionIsEmptyForItsNextRequest) {
  // One region: the next request gets it when the device stream has passed the release.
  Worker worker = OpenAndAttach(SmallLayout{.top_k = 3, .hot_size = 4, .max_requests = 1}.Make());
  const int32_t a = Admit(worker, "A");
  Assign(worker, "A", 1);
  for (const int32_t slot : {10, 11, 12}) ASSERT_TRUE(BackupPattern(worker, "A", a, slot).ok());
  HotIndices(worker, "A", {10, 11, 12}, -1);
  Assign(worker, "A", 1);
  ASSERT_TRUE(node().ReleaseRequest(worker.session, "kv", "A", Soon()).ok());
  // Stale numbers of a worker are cleared with the region.
  const int32_t d = Admit(worker, "D");
  EXPECT_EQ(d, a);
  EXPECT_THAT(worker.memory->Owner(0, d), Each(kNone));
  EXPECT_THAT(worker.memory->Lru(0, d), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(worker.memory->TableRow(d), Each(kNone));
  EXPECT_EQ(worker.memory->SequenceLength(d), kNone);
  EXPECT_THAT(Assign(worker, "D", 1).block_ids, ElementsAre(0));
  for (const int32_t slot : {10, 11}) {
    ASSERT_TRUE(BackupPattern(worker, "D", d, slot, 0xD0).ok());
  }
  const int64_t copied = Total()[Counter::kRowsCopied];
  HotIndices(worker, "D", {10, 11, -1}, 99);
  EXPECT_EQ(Total()[Counter::kRowsCopied] - copied, 2) << "no hit on A's rows";
  EXPECT_TRUE(worker.memory->HotRowIs(0, d * 128 + 0, 10, 0xD0));
  EXPECT_TRUE(worker.memory->HotRowIs(0, d * 128 + 1, 11, 0xD0));
}

TEST_F(NodeRecycleTest, K12_NoTwoLiveRequestsShareARegion) {
  Worker worker = OpenAndAttach(SmallLayout{.max_requests = 4}.Make());
  std::vector<std::pair<std::string, int32_t>> live;
  for (int i = 0; i < 1000; ++i) {
    if (live.size() == 4) {
      EXPECT_TRUE(IsError(node().AdmitRequest(worker.session, "kv", "one more", 0, Soon()).status(),
                          Code::kResourceExhausted, "REGIONS_EXHAUSTED"));
    }
    if (live.size() == 4 || (!live.empty() && i % 3 == 0)) {
      const auto gone = live.begin() + i % live.size();
      ASSERT_TRUE(node().ReleaseRequest(worker.session, "kv", gone->first, Soon()).ok());
      live.erase(gone);
    }
    const std::string id = "r" + std::to_string(i);
    const int32_t region = Admit(worker, id);
    for (const auto& [other, taken] : live) ASSERT_NE(region, taken);
    live.emplace_back(id, region);
  }
  EXPECT_TRUE(IsError(SwapInSlots(worker, "never admitted", {1}, -1).status, Code::kNotFound,
                      "REQUEST_UNKNOWN"));
}

TEST_F(NodeRecycleTest, K20_ARowThatWasNeverBackedUpIsZeroAndCounted) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  const int32_t a = Admit(worker, "A");
  Assign(worker, "A", 6);
  // The previous tenant leaves bytes in row 328, in host and hot memory.
  ASSERT_TRUE(BackupPattern(worker, "A", a, 328, 0xEE).ok());
  HotIndices(worker, "A", {328}, -1);
  ASSERT_TRUE(node().ReleaseRequest(worker.session, "kv", "A", Soon()).ok());
  WaitForQuarantine();
  const int32_t b = Admit(worker, "B");
  Assign(worker, "B", 6);
  for (int32_t slot = 128; slot < 328; ++slot) {
    ASSERT_TRUE(BackupPattern(worker, "B", b, slot).ok());
    HotIndices(worker, "B", {slot}, slot);
  }
  EXPECT_EQ(Total()[Counter::kBackedUpRows], 201);
  for (int32_t slot = 128; slot < 328; ++slot) {
    const std::vector<int32_t> hot = HotIndices(worker, "B", {slot}, -1);
    ASSERT_TRUE(worker.memory->HotRowIs(0, hot[0], slot)) << slot;
  }
  EXPECT_EQ(Total()[Counter::kUnbackedReads], 0);
  const std::vector<int32_t> hot = HotIndices(worker, "B", {328}, -1);
  EXPECT_EQ(Total()[Counter::kUnbackedReads], 1);
  EXPECT_TRUE(worker.memory->HotRowIsZero(0, hot[0]));
  // A block that nobody ever had reads the same.
  const std::vector<int32_t> never = HotIndices(worker, "B", {31 * 64}, -1);
  EXPECT_EQ(Total()[Counter::kUnbackedReads], 2);
  EXPECT_THAT(worker.memory->Owner(0, b), Not(Contains(31 * 64)));
  EXPECT_TRUE(worker.memory->HotRowIsZero(0, never[0]));
}

TEST_F(NodeRecycleTest, K23_BlocksAndRegionsAreTwoNumberings) {
  Worker worker = OpenAndAttach(SmallLayout{.top_k = 16, .hot_size = 32}.Make());
  Admit(worker, "other region");
  const int32_t region = Admit(worker, "A");
  const int32_t x = Admit(worker, "X");
  EXPECT_THAT(Assign(worker, "X", 8).block_ids, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  ASSERT_TRUE(BackupPattern(worker, "X", x, 64).ok());  // a canary in host block 1
  ASSERT_TRUE(node().FreeBlocks(worker.session, "kv", "X", {5, 2, 0}, Soon()).ok());
  WaitForQuarantine();
  // Scatter: block 5 is the third of A's.
  Admit(worker, "rest");
  Assign(worker, "rest", 24);
  const AssignResult assigned = Assign(worker, "A", 3);
  EXPECT_THAT(assigned.block_ids, ElementsAre(0, 2, 5));
  const int32_t block = assigned.block_ids[2];
  ASSERT_EQ(region, 1);
  ASSERT_NE(block, region);
  std::fill_n(worker.memory->HotRow(0, 0, 3 * 128), 656, uint8_t{0xCD});
  std::vector<int32_t> positions;
  for (int32_t i = 0; i < 16; ++i) {
    ASSERT_TRUE(BackupPattern(worker, "A", region, block * 64 + i).ok());
    positions.push_back(2 * 64 + i);  // by position: third block of the table
  }
  SwapInCall call;
  call.cache = "kv";
  call.inline_rows = {{.request_id = "A", .topk = positions}};
  const OperationOutcome outcome = SwapIn(worker, call);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  for (int32_t i = 0; i < 16; ++i) {
    EXPECT_EQ(outcome.rows[0].hot_indices[i], 128 + i);
    EXPECT_TRUE(worker.memory->HotRowIs(0, 128 + i, block * 64 + i));
  }
  EXPECT_EQ(worker.memory->HostRow(0, 0, 64)[5], PatternByte(64, 0, 5));
  EXPECT_EQ(worker.memory->HotRow(0, 0, 3 * 128)[5], 0xCD);
}

}  // namespace
}  // namespace kvtier
