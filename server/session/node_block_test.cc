// Blocks: who gets them, who may free them, and when there are none.

#include <atomic>
#include <limits>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using Code = absl::StatusCode;

class NodeBlockTest : public NodeFixture {};

TEST_F(NodeBlockTest, D07_DoubleFree) {
  Worker worker = OpenAndAttach(SmallLayout{.block_count = 8}.Make());
  Admit(worker, "A");
  Admit(worker, "B");
  EXPECT_THAT(Assign(worker, "A", 3).block_ids, ElementsAre(0, 1, 2));
  const auto free = [&](const std::string& request, const std::vector<int32_t>& blocks) {
    return node().FreeBlocks(worker.session, "kv", request, blocks, Soon());
  };
  EXPECT_EQ(free("A", {1}).value_or(-1), 1);
  EXPECT_TRUE(IsError(free("A", {1}).status(), Code::kFailedPrecondition, "BLOCK_NOT_ASSIGNED"));
  WaitForQuarantine();
  EXPECT_EQ(Stats().blocks_free, 6);
  EXPECT_TRUE(IsError(free("A", {99}).status(), Code::kInvalidArgument, "BLOCK_OUT_OF_RANGE"));
  EXPECT_TRUE(IsError(free("A", {-1}).status(), Code::kInvalidArgument, "BLOCK_OUT_OF_RANGE"));
  const AssignResult foreign = Assign(worker, "B", 1);
  EXPECT_TRUE(
      IsError(free("A", foreign.block_ids).status(), Code::kPermissionDenied, "BLOCK_FOREIGN"));
  EXPECT_EQ(free("B", foreign.block_ids).value_or(-1), 1);
  EXPECT_THAT(worker.memory->TableRow(0), ElementsAre(0, -1, 2, -1, -1, -1, -1, -1));
  EXPECT_EQ(node().ReleaseRequest(worker.session, "kv", "A", Soon()).value_or(-1), 2);
  EXPECT_TRUE(IsError(node().ReleaseRequest(worker.session, "kv", "A", Soon()).status(),
                      Code::kNotFound, "REQUEST_UNKNOWN"));
  WaitForQuarantine();
  EXPECT_EQ(Stats().blocks_free, 8);
  std::set<int32_t> ids;
  for (int i = 0; i < 8; ++i) ids.insert(Assign(worker, "B", 1).block_ids.at(0));
  EXPECT_EQ(ids.size(), 8u);
}

TEST_F(NodeBlockTest, D08_Exhaustion) {
  Worker worker = OpenAndAttach(SmallLayout{.block_count = 4}.Make());
  for (const char* id : {"A", "B", "C"}) Admit(worker, id);
  const auto assign = [&](const std::string& request, int32_t count) {
    return node().AssignBlocks(worker.session, "kv", request, count, {}, {}, Soon());
  };
  ASSERT_TRUE(assign("A", 3).ok());
  EXPECT_TRUE(IsError(assign("B", 2).status(), Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  EXPECT_EQ(Stats().blocks_free, 1);
  EXPECT_TRUE(assign("B", 1).ok());
  const absl::Status full = assign("C", 1).status();
  EXPECT_TRUE(IsError(full, Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  EXPECT_TRUE(RetryDelayOf(full).has_value());
  EXPECT_EQ(ErrorMetadataOf(full).at("limit"), "4");
  // Other work goes on while the pool is full.
  EXPECT_TRUE(SwapInSlots(worker, "B", {5}, -1).status.ok());
  ASSERT_TRUE(node().ReleaseRequest(worker.session, "kv", "A", Soon()).ok());
  EXPECT_TRUE(assign("C", 1).ok()) << "waits for the quarantine";
  EXPECT_TRUE(IsError(assign("C", 0).status(), Code::kInvalidArgument, "FIELD_INVALID"));
  EXPECT_TRUE(IsError(assign("C", -1).status(), Code::kInvalidArgument, "FIELD_INVALID"));
  EXPECT_TRUE(IsError(assign("C", std::numeric_limits<int32_t>::max()).status(),
                      Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  for (const char* id : {"B", "C"}) {
    ASSERT_TRUE(node().ReleaseRequest(worker.session, "kv", id, Soon()).ok());
  }
  Admit(worker, "D");
  EXPECT_TRUE(assign("D", 4).ok()) << "an exact fit";
  EXPECT_TRUE(IsError(assign("D", 1).status(), Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
}

TEST_F(NodeBlockTest, D08_OfManyCallersExactlyThoseThatFitSucceed) {
  Worker worker = OpenAndAttach(SmallLayout{.block_count = 4, .max_requests = 100}.Make());
  for (int i = 0; i < 100; ++i) Admit(worker, "r" + std::to_string(i));
  std::atomic<int> ok = 0, exhausted = 0;
  std::vector<std::vector<int32_t>> ids(100);
  std::vector<std::thread> threads;
  for (int i = 0; i < 100; ++i) {
    threads.emplace_back([&, i] {
      const auto assigned =
          node().AssignBlocks(worker.session, "kv", "r" + std::to_string(i), 1, {}, {}, Soon());
      if (assigned.ok()) ids[i] = assigned->block_ids;
      ok += assigned.ok();
      exhausted += ErrorReasonOf(assigned.status()) == "BLOCKS_EXHAUSTED";
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ok, 4);
  EXPECT_EQ(exhausted, 96);
  std::set<int32_t> distinct;
  for (const std::vector<int32_t>& each : ids) distinct.insert(each.begin(), each.end());
  EXPECT_EQ(distinct.size(), 4u);
}

TEST_F(NodeBlockTest, ReservedBlocksCannotBeTakenByOthers) {
  Worker worker = OpenAndAttach(SmallLayout{.block_count = 8}.Make());
  Admit(worker, "A", /*reserve=*/6);
  EXPECT_EQ(Stats().blocks_reserved, 6);
  EXPECT_EQ(Stats().blocks_free, 2);
  EXPECT_TRUE(IsError(node().AdmitRequest(worker.session, "kv", "B", 3, Soon()).status(),
                      Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  Admit(worker, "B");
  EXPECT_TRUE(IsError(node().AssignBlocks(worker.session, "kv", "B", 3, {}, {}, Soon()).status(),
                      Code::kResourceExhausted, "BLOCKS_EXHAUSTED"));
  Assign(worker, "B", 2);
  EXPECT_EQ(Assign(worker, "A", 6).block_ids.size(), 6u);
  const auto requests = node().Requests("kv");
  ASSERT_TRUE(requests.ok());
  EXPECT_EQ(requests->at(0).request_id, "A");
  EXPECT_EQ(requests->at(0).blocks, 6);
  EXPECT_EQ(requests->at(0).reserved_blocks, 0);
}

TEST_F(NodeBlockTest, ATableHasNoRoomForMore) {
  CacheLayout layout = SmallLayout{.block_count = 16}.Make();
  layout.max_blocks_per_request = 4;
  Worker worker = OpenAndAttach(layout);
  Admit(worker, "A");
  EXPECT_EQ(Assign(worker, "A", 3).table_index, 0);
  const absl::Status full =
      node().AssignBlocks(worker.session, "kv", "A", 2, {}, {}, Soon()).status();
  EXPECT_TRUE(IsError(full, Code::kInvalidArgument, "FIELD_INVALID"));
  EXPECT_EQ(Stats().blocks_used, 3);
  // Blocks at the end of the table make room, those in the middle do not.
  ASSERT_TRUE(node().FreeBlocks(worker.session, "kv", "A", {0, 2}, Soon()).ok());
  const AssignResult more = Assign(worker, "A", 2);
  EXPECT_EQ(more.table_index, 2);
  EXPECT_THAT(worker.memory->TableRow(0), ElementsAre(-1, 1, more.block_ids[0], more.block_ids[1]));
}

TEST_F(NodeBlockTest, SharedBlocksAreCheckedAgainstTheirGeneration) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  Admit(worker, "A");
  Admit(worker, "B");
  const AssignResult a = Assign(worker, "A", 2);
  const auto share = [&](const std::vector<int32_t>& blocks,
                         const std::vector<int32_t>& generations) {
    return node().AssignBlocks(worker.session, "kv", "B", 1, blocks, generations, Soon());
  };
  EXPECT_TRUE(
      IsError(share(a.block_ids, {1, 2}).status(), Code::kFailedPrecondition, "GENERATION_STALE"));
  EXPECT_TRUE(IsError(share({0, 7}, {}).status(), Code::kFailedPrecondition, "BLOCK_NOT_ASSIGNED"));
  EXPECT_EQ(Stats().blocks_used, 2);
  const auto shared = share(a.block_ids, a.generations);
  ASSERT_TRUE(shared.ok()) << shared.status();
  EXPECT_THAT(shared->block_ids, ElementsAre(0, 1, 8)) << "2..7 are for A to grow";
  EXPECT_EQ(worker.memory->BlockGeneration(8), shared->generations[2]);
}

}  // namespace
}  // namespace kvtier
