// Device streams that have nothing to do: calls about blocks end at once, on the caller's thread,
// and in the same order as ever.

#include <algorithm>
#include <atomic>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"

namespace kvtier {
namespace {

using ::testing::Contains;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::Not;
using Op = DeviceOperation;

class NodeIdleTest : public NodeFixture {
 protected:
  explicit NodeIdleTest(const Options& options = {}) : NodeFixture(options) {}

  Patience NoPatience() { return Patience::None(Soon(), &gave_up_); }
  absl::StatusOr<int64_t> EnqueueBackup(const Worker& worker, const std::string& request,
                                        int32_t slot) {
    BackupCall call;
    call.cache = worker.cache;
    call.inline_rows = {{.request_id = request, .slot = slot}};
    return node().Backup(worker.session, call, nullptr);
  }
  // Its device stream has done all, and has said so.
  void WaitUntilIdle(const Worker& worker) {
    while (true) {
      gave_up_ = false;
      const absl::Status status =
          node().InvalidateBlocks(worker.session, worker.cache, {0}, NoPatience()).status();
      if (!gave_up_) {
        EXPECT_TRUE(status.ok()) << status;
        return;
      }
      std::this_thread::yield();
    }
  }

  bool gave_up_ = false;
};

// It says that it is a GPU, whose memory the host must not read.
class NodeIdleGpuTest : public NodeIdleTest {
 protected:
  NodeIdleGpuTest() : NodeIdleTest({.claims_cuda = true}) {}
};

TEST_F(NodeIdleTest, CallsEndWithoutWaitingAndAskNoDevice) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  Admit(worker, "first");
  Assign(worker, "first", 1);
  WaitUntilIdle(worker);
  const int64_t notifications = plan().calls(Op::kNotify);
  EXPECT_EQ(node().AdmitRequest(worker.session, "kv", "r", 0, NoPatience()).value_or(-1), 1);
  const auto assigned = node().AssignBlocks(worker.session, "kv", "r", 2, {}, {}, NoPatience());
  ASSERT_TRUE(assigned.ok()) << assigned.status();
  std::vector<int32_t> row = worker.memory->TableRow(1);
  EXPECT_EQ(std::vector<int32_t>(row.begin(), row.begin() + 2), assigned->block_ids);
  EXPECT_TRUE(
      node().FreeBlocks(worker.session, "kv", "r", {assigned->block_ids[0]}, NoPatience()).ok());
  EXPECT_EQ(worker.memory->TableRow(1)[0], kNone);
  EXPECT_EQ(Stats().blocks_quarantined, 0) << "nothing stands in front of them";
  EXPECT_EQ(node().ReleaseRequest(worker.session, "kv", "r", NoPatience()).value_or(-1), 1);
  EXPECT_THAT(worker.memory->TableRow(1), Each(kNone));
  EXPECT_FALSE(gave_up_);
  EXPECT_EQ(plan().calls(Op::kNotify), notifications);
}

// What is done here is an invalidation like any other: in every session, counted, and before
// anything that is enqueued later.
TEST_F(NodeIdleTest, CopiesInOtherSessionsAreDropped) {
  const CacheLayout layout = SmallLayout{.block_count = 4}.Make();
  Worker one = OpenAndAttach(layout), two = OpenAndAttach(layout);
  const int32_t a = Admit(one, "A"), b = Admit(two, "B");
  ASSERT_THAT(Assign(one, "A", 1).block_ids, ElementsAre(0));
  Assign(two, "B", 0, {0});
  ASSERT_TRUE(BackupPattern(one, "A", a, 5).ok());
  ASSERT_TRUE(SwapInSlots(two, "B", {5}, -1).status.ok());
  EXPECT_THAT(two.memory->Owner(0, b), Contains(5));
  absl::StatusOr<int64_t> dropped;
  do {
    gave_up_ = false;
    dropped = node().InvalidateBlocks(one.session, "kv", {0}, NoPatience());
  } while (gave_up_);
  EXPECT_EQ(dropped.value_or(-1), 1);
  EXPECT_THAT(two.memory->Owner(0, b), Each(Not(5)));
  // The block's next tenant has its own bytes, in every session.
  ASSERT_TRUE(node().FreeBlocks(two.session, "kv", "B", {0}, Soon()).ok());
  ASSERT_TRUE(node().FreeBlocks(one.session, "kv", "A", {0}, Soon()).ok());
  WaitForQuarantine();
  EXPECT_THAT(Assign(one, "A", 4).block_ids, Contains(0));
  ASSERT_TRUE(BackupPattern(one, "A", a, 5, 0xAA).ok());
  const OperationOutcome outcome = SwapInSlots(two, "B", {5}, -1);
  ASSERT_TRUE(outcome.status.ok());
  EXPECT_TRUE(two.memory->HotRowIs(0, outcome.rows[0].hot_indices[0], 5, 0xAA));
}

// Work in front of the call, in any session of the cache, is waited for; who must not wait is told,
// and nothing has changed.
TEST_F(NodeIdleTest, WorkInFrontIsNotPassed) {
  const CacheLayout layout = SmallLayout{}.Make();
  Worker one = OpenAndAttach(layout), two = OpenAndAttach(layout);
  Admit(one, "A");
  Admit(two, "B");
  Assign(one, "A", 2);
  const auto delay = plan().DelayNth(Op::kBackup, 1);
  ASSERT_TRUE(EnqueueBackup(two, "B", 5).ok());
  delay->WaitUntilReached();
  const auto gives_up = [&](const absl::Status& status) {
    EXPECT_FALSE(status.ok());
    return std::exchange(gave_up_, false);
  };
  EXPECT_TRUE(
      gives_up(node().AssignBlocks(one.session, "kv", "A", 1, {}, {}, NoPatience()).status()));
  EXPECT_TRUE(gives_up(node().FreeBlocks(one.session, "kv", "A", {0}, NoPatience()).status()));
  EXPECT_TRUE(gives_up(node().InvalidateBlocks(one.session, "kv", {0}, NoPatience()).status()));
  EXPECT_TRUE(gives_up(node().AdmitRequest(one.session, "kv", "C", 0, NoPatience()).status()));
  EXPECT_TRUE(gives_up(node().ReleaseRequest(one.session, "kv", "A", NoPatience()).status()));
  EXPECT_EQ(Stats().blocks_used, 2);
  EXPECT_EQ(Stats().blocks_quarantined, 0);
  EXPECT_EQ(Stats().sessions[0].requests, 1);
  // What is freed is free when that work is done.
  EXPECT_EQ(node().FreeBlocks(one.session, "kv", "A", {1}, Soon()).value_or(-1), 1);
  EXPECT_EQ(Stats().blocks_quarantined, 1);
  // Who may wait does, although its own device stream has nothing to do.
  std::atomic<bool> ended = false;
  std::thread call([&] {
    EXPECT_TRUE(node().InvalidateBlocks(one.session, "kv", {0}, Soon()).ok());
    ended = true;
  });
  while (plan().calls(Op::kInvalidate) < 2) std::this_thread::yield();
  EXPECT_FALSE(ended);
  delay->Release();
  call.join();
}

// A GPU is never worked on here; but one that has said that all is done is not asked again.
TEST_F(NodeIdleGpuTest, OnlyWhatIsKnownToBeDoneNeedsNoDevice) {
  const CacheLayout layout = SmallLayout{}.Make();
  Worker one = OpenAndAttach(layout), two = OpenAndAttach(layout);
  Admit(one, "A");
  Admit(two, "B");
  Assign(one, "A", 2);
  EXPECT_FALSE(node().AssignBlocks(one.session, "kv", "A", 1, {}, {}, NoPatience()).ok());
  EXPECT_TRUE(gave_up_);
  // The end of work is known a moment after a call has heard of it.
  const auto asked_by_free = [&] {
    const std::vector<int32_t> blocks = Assign(one, "A", 1).block_ids;
    const int64_t before = plan().calls(Op::kNotify);
    EXPECT_TRUE(node().FreeBlocks(one.session, "kv", "A", blocks, Soon()).ok());
    return plan().calls(Op::kNotify) - before;
  };
  int tries = 1000;
  while (asked_by_free() > 1 && tries > 0) --tries;
  EXPECT_GT(tries, 0) << "the other session's device stream is asked each time";
  WaitForQuarantine();
  // One that stands still is asked.
  const auto delay = plan().DelayNth(Op::kBackup, 1);
  ASSERT_TRUE(EnqueueBackup(two, "B", 5).ok());
  delay->WaitUntilReached();
  ASSERT_TRUE(node().FreeBlocks(one.session, "kv", "A", {0}, Soon()).ok());
  EXPECT_TRUE(SwapInSlots(one, "A", {1}, -1).status.ok()) << "its own device stream passes";
  EXPECT_EQ(Stats().blocks_quarantined, 1);
  delay->Release();
  WaitForQuarantine();
}

}  // namespace
}  // namespace kvtier
