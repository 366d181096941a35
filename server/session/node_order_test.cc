// What waits for what: device streams that stand still, deadlines that pass, work in flight.

#include <algorithm>
#include <atomic>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
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
using Code = absl::StatusCode;
using Op = DeviceOperation;

class NodeOrderTest : public NodeFixture {
 protected:
  absl::StatusOr<int64_t> EnqueueBackup(const Worker& worker, const std::string& request,
                                        int32_t slot, OperationDone done = nullptr) {
    BackupCall call;
    call.cache = worker.cache;
    call.inline_rows = {{.request_id = request, .slot = slot}};
    return node().Backup(worker.session, call, std::move(done));
  }
};

// A test's clock decides when deadlines pass.
class NodeDeadlineTest : public NodeFixture {
 protected:
  NodeDeadlineTest() : NodeFixture({.manual_clock = true}) {}
};

TEST_F(NodeOrderTest, K22_AFreedBlockWaitsForTheCopyThatReadsIt) {
  Worker worker = OpenAndAttach(SmallLayout{.block_count = 8}.Make());
  Admit(worker, "A");
  const int32_t b = Admit(worker, "B");
  Assign(worker, "A", 5);  // 0..4
  Assign(worker, "B", 1);  // 6: 5 is for A to grow
  const auto delay = plan().DelayNth(Op::kBackup, 1);
  ASSERT_TRUE(EnqueueBackup(worker, "A", 4 * 64).ok());
  delay->WaitUntilReached();
  ASSERT_TRUE(node().FreeBlocks(worker.session, "kv", "A", {4}, Soon()).ok());
  EXPECT_EQ(Stats().blocks_quarantined, 1);
  // B's next block is another one, although 4 is the lowest that nobody holds; the assignment
  // itself waits for the device stream, which stands still.
  std::vector<int32_t> assigned;
  std::thread assign([&] { assigned = Assign(worker, "B", 1).block_ids; });
  while (Stats().blocks_used < 6) std::this_thread::yield();
  EXPECT_EQ(Stats().blocks_quarantined, 1);
  delay->Release();
  assign.join();
  EXPECT_THAT(assigned, ElementsAre(7));
  WaitForQuarantine();
  // Then the block is free, and B's bytes are the only ones in it.
  EXPECT_THAT(Assign(worker, "B", 2).block_ids, Contains(4));
  ASSERT_TRUE(BackupPattern(worker, "B", b, 4 * 64, 0xBB).ok());
  const OperationOutcome outcome = SwapInSlots(worker, "B", {4 * 64}, -1);
  ASSERT_TRUE(outcome.status.ok());
  EXPECT_TRUE(worker.memory->HotRowIs(0, outcome.rows[0].hot_indices[0], 4 * 64, 0xBB));
}

TEST_F(NodeOrderTest, K22_ABlockWaitsForTheStreamsOfEverySession) {
  const CacheLayout layout = SmallLayout{.block_count = 8}.Make();
  Worker one = OpenAndAttach(layout), two = OpenAndAttach(layout);
  Admit(one, "A");
  Admit(two, "A");
  Assign(one, "A", 1);
  Assign(two, "A", 0, {0});
  const auto delay = plan().DelayNth(Op::kBackup, 1);
  ASSERT_TRUE(EnqueueBackup(two, "A", 5).ok());
  delay->WaitUntilReached();
  ASSERT_TRUE(node().FreeBlocks(two.session, "kv", "A", {0}, Soon()).ok());
  ASSERT_TRUE(node().FreeBlocks(one.session, "kv", "A", {0}, Soon()).ok());
  // The last holder's own device stream passes; the other session's does not.
  EXPECT_TRUE(SwapInSlots(one, "A", {1}, -1).status.ok());
  EXPECT_EQ(Stats().blocks_quarantined, 1);
  delay->Release();
  WaitForQuarantine();
  EXPECT_EQ(Stats().blocks_free, 8);
}

TEST_F(NodeOrderTest, D09_BlocksAndRegionReturnOnlyAfterTheCopies) {
  Worker worker = OpenAndAttach(SmallLayout{.max_requests = 1}.Make());
  Admit(worker, "A");
  Assign(worker, "A", 2);
  const auto delay = plan().DelayNth(Op::kBackup, 1);
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(EnqueueBackup(worker, "A", i).ok());
  delay->WaitUntilReached();
  EXPECT_EQ(node().ReleaseRequest(worker.session, "kv", "A", Soon()).value_or(-1), 2);
  EXPECT_EQ(Stats().blocks_quarantined, 2);
  EXPECT_EQ(Stats().sessions[0].operations_in_flight, 3);
  std::atomic<bool> admitted = false;
  std::thread admit([&] {
    EXPECT_EQ(Admit(worker, "B"), 0);
    admitted = true;
  });
  EXPECT_FALSE(admitted);
  delay->Release();
  admit.join();
  WaitForQuarantine();
  EXPECT_EQ(Stats().blocks_free, 32);
  EXPECT_EQ(Stats().sessions[0].operations_in_flight, 0);
}

TEST_F(NodeOrderTest, D09_AbortedRequestsLeakNothing) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  std::mt19937 random(1);
  for (int i = 0; i < 1000; ++i) {
    const std::string id = "r" + std::to_string(i);
    Admit(worker, id);
    const AssignResult assigned = Assign(worker, id, 2);
    ASSERT_EQ(assigned.block_ids.size(), 2u);
    ASSERT_TRUE(EnqueueBackup(worker, id, assigned.block_ids[0] * 64).ok());
    if (random() % 2 == 0) {
      ASSERT_TRUE(
          node().FreeBlocks(worker.session, "kv", id, {assigned.block_ids[1]}, Soon()).ok());
    }
    ASSERT_TRUE(node().ReleaseRequest(worker.session, "kv", id, Soon()).ok());
  }
  WaitForQuarantine();
  const CacheSnapshot stats = Stats();
  EXPECT_EQ(stats.blocks_free, 32);
  EXPECT_EQ(stats.blocks_used, 0);
  EXPECT_EQ(stats.sessions[0].requests, 0);
  worker.memory.reset();
  ExpectBaseline();
}

// A seed says for how long a device stream stands still and for how long callers wait for it: which
// of the two ends first is a race, and nothing stays whoever wins it.
TEST_F(NodeOrderTest, D09_CallsThatAreGivenUpAtAnyTimeLeakNothing) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  Admit(worker, "holder");
  Assign(worker, "holder", 1);
  std::mt19937 random(9);
  const auto a_while = [&] { return absl::Microseconds(random() % 300); };
  int late = 0, in_time = 0;
  for (int i = 0; i < 1000; ++i) {
    const std::string id = "r" + std::to_string(i);
    Admit(worker, id);
    // Each round draws as many numbers, whatever comes of them.
    const absl::Duration device_time = a_while(), free_time = a_while();
    const absl::Duration assign_time = i % 4 == 0 ? absl::Seconds(30) : a_while();
    const bool is_idle_at_release = random() % 2 == 0;
    const auto delay = plan().DelayNth(Op::kBackup, 1);
    ASSERT_TRUE(EnqueueBackup(worker, "holder", 0).ok());
    std::thread device([&delay, until = absl::Now() + device_time] {
      while (absl::Now() < until) std::this_thread::yield();
      delay->Release();
    });
    const auto assigned =
        node().AssignBlocks(worker.session, "kv", id, 2, {}, {}, absl::Now() + assign_time);
    const bool ok = assigned.ok();
    ++(ok ? in_time : late);
    if (ok) {
      EXPECT_TRUE(EnqueueBackup(worker, id, assigned->block_ids[0] * 64).ok());
      // Late or not: the rest goes with the request.
      (void)node().FreeBlocks(worker.session, "kv", id, {assigned->block_ids[1]},
                              absl::Now() + free_time);
    } else {
      EXPECT_TRUE(IsError(assigned.status(), Code::kDeadlineExceeded, "DEADLINE"));
      EXPECT_EQ(Stats().blocks_used, 1) << "the holder's: taken back before the request goes";
    }
    if (is_idle_at_release) device.join();
    EXPECT_TRUE(node().ReleaseRequest(worker.session, "kv", id, Soon()).ok());
    if (device.joinable()) device.join();
  }
  EXPECT_GE(in_time, 250);
  EXPECT_GT(late, 0);
  WaitForQuarantine();
  while (Stats().sessions[0].operations_in_flight > 0) std::this_thread::yield();
  const CacheSnapshot stats = Stats();
  EXPECT_EQ(stats.blocks_free, 31);
  EXPECT_EQ(stats.blocks_used, 1) << "the holder's";
  EXPECT_EQ(stats.blocks_reserved, 0);
  EXPECT_EQ(stats.sessions[0].requests, 1);
  worker.memory.reset();
  ExpectBaseline();
}

TEST_F(NodeDeadlineTest, D10_NothingIsDoneAfterTheDeadline) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  Admit(worker, "r");
  Assign(worker, "r", 2);
  const absl::Time passed = clock().Now();
  const auto is_deadline = [](const absl::Status& status) {
    return IsError(status, Code::kDeadlineExceeded, "DEADLINE");
  };
  const int64_t notifications = plan().calls(Op::kNotify);
  EXPECT_TRUE(
      is_deadline(node().AssignBlocks(worker.session, "kv", "r", 1, {}, {}, passed).status()));
  EXPECT_TRUE(is_deadline(node().FreeBlocks(worker.session, "kv", "r", {0}, passed).status()));
  EXPECT_TRUE(is_deadline(node().InvalidateBlocks(worker.session, "kv", {0}, passed).status()));
  EXPECT_TRUE(is_deadline(node().AdmitRequest(worker.session, "kv", "r2", 0, passed).status()));
  EXPECT_TRUE(is_deadline(node().ReleaseRequest(worker.session, "kv", "r", passed).status()));
  EXPECT_TRUE(is_deadline(node().DetachCache(worker.session, "kv", passed).status()));
  EXPECT_TRUE(is_deadline(
      node().AttachCache(worker.session, "kv2", SmallLayout{}.Make(), "", passed).status()));
  EXPECT_EQ(plan().calls(Op::kNotify), notifications) << "no device was asked";
  EXPECT_EQ(Stats().blocks_used, 2);
  EXPECT_EQ(Assign(worker, "r", 1).block_ids.size(), 1u) << "the next call is served";
}

TEST_F(NodeDeadlineTest, D10_AnAssignmentThatIsLateIsTakenBack) {
  Worker worker = OpenAndAttach(SmallLayout{.block_count = 4}.Make());
  Admit(worker, "r", /*reserve=*/1);
  Assign(worker, "r", 1);
  const auto delay = plan().DelayNth(Op::kWrite, 1);
  absl::Status status;
  std::thread call([&] {
    status = node()
                 .AssignBlocks(worker.session, "kv", "r", 2, {}, {},
                               clock().Now() + absl::Milliseconds(50))
                 .status();
  });
  delay->WaitUntilReached();
  clock().Advance(absl::Milliseconds(60));
  call.join();
  EXPECT_TRUE(IsError(status, Code::kDeadlineExceeded, "DEADLINE"));
  EXPECT_EQ(Stats().blocks_used, 1);
  EXPECT_EQ(Stats().blocks_quarantined, 2) << "the device may still write their ids";
  delay->Release();
  WaitForQuarantine();
  EXPECT_EQ(Stats().blocks_free, 3);
  EXPECT_THAT(worker.memory->TableRow(0), ElementsAre(0, -1, -1, -1));
  EXPECT_EQ(Assign(worker, "r", 3).table_index, 1) << "and the next attempt works";
}

// Shared blocks alone: nothing is quarantined, and nobody else gives the device anything.
TEST_F(NodeDeadlineTest, D10_ALateAssignmentLeavesTheTableWithoutFurtherWork) {
  Worker worker = OpenAndAttach(SmallLayout{.block_count = 4}.Make());
  Admit(worker, "r");
  Assign(worker, "r", 1);
  Admit(worker, "late");
  const auto late = plan().DelayNth(Op::kWrite, 1);
  absl::Status status;
  std::thread call([&] {
    status = node()
                 .AssignBlocks(worker.session, "kv", "late", 0, {0}, {},
                               clock().Now() + absl::Milliseconds(50))
                 .status();
  });
  late->WaitUntilReached();
  const auto undone = plan().DelayNth(Op::kWrite, 1);
  clock().Advance(absl::Milliseconds(60));
  call.join();
  EXPECT_TRUE(IsError(status, Code::kDeadlineExceeded, "DEADLINE"));
  late->Release();
  undone->WaitUntilReached();
  undone->Release();
  ASSERT_TRUE(BackupPattern(worker, "r", 0, 0).ok());  // comes after it
  EXPECT_THAT(worker.memory->TableRow(0), ElementsAre(0, -1, -1, -1));
  EXPECT_THAT(worker.memory->TableRow(1), ElementsAre(-1, -1, -1, -1));
}

TEST_F(NodeDeadlineTest, D10_AnAdmissionThatIsLateIsTakenBack) {
  Worker worker = OpenAndAttach(SmallLayout{.max_requests = 1}.Make());
  const auto delay = plan().DelayNth(Op::kResetRegion, 1);
  absl::Status status;
  std::thread call([&] {
    status = node()
                 .AdmitRequest(worker.session, "kv", "r", 5, clock().Now() + absl::Seconds(1))
                 .status();
  });
  delay->WaitUntilReached();
  clock().Advance(absl::Seconds(1));
  call.join();
  EXPECT_TRUE(IsError(status, Code::kDeadlineExceeded, "DEADLINE"));
  EXPECT_EQ(Stats().blocks_reserved, 0);
  EXPECT_EQ(Stats().sessions[0].requests, 0);
  delay->Release();
  EXPECT_EQ(Admit(worker, "r2"), 0) << "the region comes back";
}

// A session without a request has no copies: its device is not asked.
TEST_F(NodeOrderTest, SessionsWithoutRequestsHaveNothingToInvalidate) {
  const CacheLayout layout = SmallLayout{}.Make();
  Worker worker = OpenAndAttach(layout), idle = OpenAndAttach(layout);
  Admit(worker, "r");
  Assign(worker, "r", 1);
  const auto asked = [&] {
    const int64_t before = plan().calls(Op::kInvalidate);
    const absl::Status status = node().InvalidateBlocks(worker.session, "kv", {0}, Soon()).status();
    EXPECT_TRUE(status.ok()) << status;
    return plan().calls(Op::kInvalidate) - before;
  };
  EXPECT_EQ(asked(), 1);
  Admit(idle, "r");
  EXPECT_EQ(asked(), 2);
}

// Two verbs on one request exclude one another, also while one waits for the device.
TEST_F(NodeOrderTest, VerbsOnOneRequestWaitForOneAnother) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  Admit(worker, "r");
  const auto delay = plan().DelayNth(Op::kWrite, 1);
  AssignResult first, second;
  std::thread one([&] { first = Assign(worker, "r", 2); });
  delay->WaitUntilReached();
  std::thread two([&] { second = Assign(worker, "r", 3); });
  delay->Release();
  one.join();
  two.join();
  EXPECT_EQ(first.table_index, 0);
  EXPECT_EQ(second.table_index, 2);
  EXPECT_THAT(std::vector<int32_t>(worker.memory->TableRow(0)),
              ::testing::Contains(Not(kNone)).Times(5));
}

// A session that is closed while a call of it waits: the call ends with it, and nothing stays.
TEST_F(NodeOrderTest, ACallThatWaitsEndsWithItsSession) {
  const CacheLayout layout = SmallLayout{}.Make();
  Worker other = OpenAndAttach(layout);
  Worker worker = OpenAndAttach(layout);
  Admit(worker, "r");
  const auto delay = plan().DelayNth(Op::kWrite, 1);
  absl::Status status;
  std::thread call(
      [&] { status = node().AssignBlocks(worker.session, "kv", "r", 2, {}, {}, Soon()).status(); });
  delay->WaitUntilReached();
  node().CloseSession(worker.session);
  delay->Release();
  call.join();
  EXPECT_TRUE(IsError(status, Code::kAborted, "SESSION_CLOSED"));
  while (Stats().blocks_free < 32) std::this_thread::yield();
  worker.memory.reset();
  other.memory.reset();
  ExpectBaseline();
}

// Callbacks of a closed session still run: its work is done.
TEST_F(NodeOrderTest, CallbacksOfAClosedSessionRun) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  Admit(worker, "A");
  const auto delay = plan().DelayNth(Op::kBackup, 1);
  std::atomic<int> done = 0, waited = 0;
  int64_t ticket = 0;
  for (int i = 0; i < 3; ++i) {
    const auto enqueued =
        EnqueueBackup(worker, "A", i, [&](const OperationOutcome& o) { done += o.status.ok(); });
    ASSERT_TRUE(enqueued.ok());
    EXPECT_EQ(*enqueued, ++ticket);
  }
  ASSERT_TRUE(node()
                  .OnTicket(worker.session, "kv", 2,
                            [&](const OperationOutcome& o) { waited += o.status.ok(); })
                  .ok());
  delay->WaitUntilReached();
  node().CloseSession(worker.session);
  EXPECT_EQ(done, 0);
  delay->Release();
  worker.memory.reset();
  ExpectBaseline();
  EXPECT_EQ(done, 3);
  EXPECT_EQ(waited, 1);
}

}  // namespace
}  // namespace kvtier
