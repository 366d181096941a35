// Swap-in, replay and backup: what goes in, what comes out, and what is refused.

#include <algorithm>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/core/limits.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"
#include "server/session/wait.h"

namespace kvtier {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Code = absl::StatusCode;
using Op = DeviceOperation;

class NodeDataTest : public NodeFixture {
 protected:
  OperationOutcome Batch(const Worker& worker, std::vector<InlineSwapInRow> rows) {
    SwapInCall call;
    call.cache = worker.cache;
    call.use_slots = true;
    call.inline_rows = std::move(rows);
    return SwapIn(worker, call);
  }
  // Waits until all that was enqueued on the worker's device stream is done.
  void Drain(const Worker& worker) {
    SwapInCall call;
    call.cache = worker.cache;
    call.inline_rows.emplace();
    EXPECT_TRUE(SwapIn(worker, call).status.ok());
  }
};

TEST_F(NodeDataTest, K13_StateBelongsToTheRequestNotToTheRow) {
  Worker worker = OpenAndAttach(SmallLayout{.top_k = 3, .hot_size = 4}.Make());
  const int32_t a = Admit(worker, "A");
  Admit(worker, "B");
  Assign(worker, "A", 1);
  for (const int32_t slot : {10, 11, 12, 50, 51}) {
    ASSERT_TRUE(BackupPattern(worker, "A", a, slot).ok());
  }
  OperationOutcome outcome = Batch(worker, {{"A", {10, 11, -1}, 19}, {"B", {50, 51, -1}, 59}});
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.rows[0].hot_indices, ElementsAre(0, 1, -1));
  EXPECT_THAT(outcome.rows[1].hot_indices, ElementsAre(128, 129, -1));
  outcome = Batch(worker, {{"B", {51, 50, -1}, 60}, {"A", {11, 12, 10}, 20}});
  EXPECT_THAT(outcome.rows[0].hot_indices, ElementsAre(129, 128, -1));
  EXPECT_THAT(outcome.rows[0].plan_slots, IsEmpty());
  EXPECT_THAT(outcome.rows[1].hot_indices, ElementsAre(1, 2, 0));
  EXPECT_THAT(outcome.rows[1].plan_slots, ElementsAre(12));
  const int64_t misses = Total()[Counter::kMisses];
  Batch(worker, {{"A", {10, 11, 12}, -1}});
  Batch(worker, {{"", {}, -1}, {"B", {50, 51}, -1}});
  EXPECT_EQ(Total()[Counter::kMisses], misses) << "still all hits";
  const absl::Status twice = Batch(worker, {{"A", {10}, -1}, {"A", {11}, -1}}).status;
  EXPECT_TRUE(IsError(twice, Code::kInvalidArgument, "REQUEST_REPEATED"));
  EXPECT_EQ(ErrorMetadataOf(twice).at("request_id"), "A");
  EXPECT_EQ(ErrorMetadataOf(twice).at("limit"), "1");
}

TEST_F(NodeDataTest, K14_MoreThanTopK) {
  const absl::Status refused =
      node()
          .AttachCache(Open(), "kv", SmallLayout{.top_k = 6, .hot_size = 4}.Make(), "", Soon())
          .status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(refused.message()),
              ::testing::AllOf(::testing::HasSubstr("4"), ::testing::HasSubstr("6")));
  EXPECT_EQ(pool().stats().used_bytes, 0);
  EXPECT_EQ(plan().calls(Op::kAllocate), 0) << "nothing was allocated";

  Worker worker = OpenAndAttach(SmallLayout{.top_k = 4, .hot_size = 4}.Make());
  Admit(worker, "r");
  const std::vector<int32_t> lru = worker.memory->Lru(0, 0);
  const absl::Status wide = Batch(worker, {{"r", {1, 2, 3, 4, 5, 6}, -1}}).status;
  EXPECT_TRUE(IsError(wide, Code::kInvalidArgument, "FIELD_INVALID"));
  EXPECT_EQ(ErrorMetadataOf(wide).at("field"), "rows[0].topk");
  EXPECT_EQ(ErrorMetadataOf(wide).at("value"), "6 entries long");
  EXPECT_EQ(ErrorMetadataOf(wide).at("limit"), "0..4 entries long");
  EXPECT_EQ(worker.memory->Lru(0, 0), lru);
}

TEST_F(NodeDataTest, K14_HotSizeMayEqualTopK) {
  Worker worker = OpenAndAttach(SmallLayout{.top_k = 8, .hot_size = 8}.Make());
  const int32_t region = Admit(worker, "r");
  Assign(worker, "r", 1);
  std::vector<int32_t> first, second;
  for (int32_t i = 0; i < 8; ++i) {
    first.push_back(10 + i);
    second.push_back(20 + i);
  }
  for (int32_t slot = 10; slot < 28; ++slot) {
    ASSERT_TRUE(BackupPattern(worker, "r", region, slot).ok());
  }
  Batch(worker, {{"r", first, -1}});
  const int64_t misses = Total()[Counter::kMisses];
  const OperationOutcome outcome = Batch(worker, {{"r", second, -1}});
  EXPECT_EQ(Total()[Counter::kMisses] - misses, 8);
  EXPECT_THAT(outcome.rows[0].hot_indices, ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
  EXPECT_THAT(worker.memory->Lru(0, region), ElementsAre(0, 1, 2, 3, 4, 5, 6, 7));
}

TEST_F(NodeDataTest, K09_SlotsPastTheEnd) {
  Worker worker = OpenAndAttach(SmallLayout{.block_count = 27}.Make());
  const int32_t region = Admit(worker, "r");
  Assign(worker, "r", 27);
  ASSERT_TRUE(BackupPattern(worker, "r", region, 1727).ok());
  std::fill_n(worker.memory->HotRow(0, 0, 1), 656, uint8_t{0xCD});
  const OperationOutcome outcome = Batch(worker, {{"r", {1727, 1728, 2147483647}, -1}});
  ASSERT_TRUE(outcome.status.ok());
  EXPECT_TRUE(worker.memory->HotRowIs(0, outcome.rows[0].hot_indices[0], 1727));
  EXPECT_TRUE(worker.memory->HotRowIsZero(0, outcome.rows[0].hot_indices[1]));
  EXPECT_EQ(Total()[Counter::kUnsourced], 2);
  // In a backup they are refused whole.
  const int64_t backed_up = Total()[Counter::kBackedUpRows];
  for (const int32_t slot : {1728, -1, 2147483647}) {
    const absl::Status status =
        Backup(worker, {{.request_id = "r", .slot = 5, .source_hot_row = 0},
                        {.request_id = "r", .slot = slot, .source_hot_row = 0}});
    EXPECT_TRUE(IsError(status, Code::kOutOfRange, "SLOT_OUT_OF_RANGE"));
    EXPECT_EQ(ErrorMetadataOf(status).at("row"), "1");
    EXPECT_EQ(ErrorMetadataOf(status).at("limit"), "1728");
  }
  Drain(worker);
  EXPECT_EQ(Total()[Counter::kBackedUpRows], backed_up) << "nothing was written";
}

TEST_F(NodeDataTest, StepBuffersAreLeftAloneByInlineCalls) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  Admit(worker, "r");
  const TierGeometry& geometry = worker.memory->geometry();
  std::vector<uint8_t> canary(geometry.step_bytes, 0x5A);
  uint8_t* const step = reinterpret_cast<uint8_t*>(worker.memory->StepArray({0, 0}));
  std::copy(canary.begin(), canary.end(), step);
  ASSERT_TRUE(Batch(worker, {{"r", {1, 2, 3}, 7}, {"", {}, -1}}).status.ok());
  ASSERT_TRUE(Backup(worker, {{.request_id = "r", .slot = 5}}).ok());
  EXPECT_TRUE(std::equal(canary.begin(), canary.end(), step));
}

// The step-buffer plane: swap-in of the leader, replay on the followers, backup.
TEST_F(NodeDataTest, StepBuffers) {
  Worker worker = OpenAndAttach(SmallLayout{.top_k = 4, .hot_size = 8, .layers = 3}.Make());
  const int32_t region = Admit(worker, "r");
  Assign(worker, "r", 2);
  for (const int32_t slot : {64, 65}) {
    ASSERT_TRUE(BackupPattern(worker, "r", region, slot).ok());
  }
  const TierGeometry& geometry = worker.memory->geometry();
  const GroupGeometry& group = geometry.groups[0];
  *worker.memory->StepArray(geometry.num_real_rows) = 1;
  worker.memory->StepArray(geometry.row_to_request)[0] = region;
  worker.memory->StepArray(geometry.newest_slot)[0] = kNone;
  const std::vector<int32_t> positions = {64, 65, -1, 300};
  std::copy(positions.begin(), positions.end(), worker.memory->StepArray(group.topk));
  SwapInCall call;
  call.cache = "kv";
  call.step_rows = 4;
  call.layers = LayerRange{0, 1};
  OperationOutcome outcome = SwapIn(worker, call);
  ASSERT_TRUE(outcome.status.ok()) << outcome.status;
  EXPECT_THAT(outcome.rows, IsEmpty());
  const int32_t* const hot = worker.memory->StepArray(group.hot_indices);
  EXPECT_THAT(std::vector<int32_t>(hot, hot + 4), ElementsAre(0, 1, -1, -1));
  EXPECT_EQ(worker.memory->HotRow(0, 0, 0)[3], PatternByte(64, 0, 3));
  EXPECT_EQ(worker.memory->HotRow(0, 1, 0)[3], 0) << "a follower";
  ReplayPlanCall replay = {.cache = "kv", .num_rows = 4};
  ASSERT_TRUE(node().ReplayPlan(worker.session, replay, nullptr).ok());
  // Backup of the newest row, named by the step buffers.
  for (int layer = 0; layer < 3; ++layer) {
    std::fill_n(worker.memory->HotRow(0, layer, 8), 656, static_cast<uint8_t>(0x70 + layer));
  }
  worker.memory->StepArray(geometry.newest_slot)[0] = 99;
  BackupCall backup;
  backup.cache = "kv";
  backup.step_rows = 4;
  ASSERT_TRUE(node().Backup(worker.session, backup, nullptr).ok());
  Drain(worker);
  EXPECT_TRUE(worker.memory->HotRowIs(0, 0, 64));
  EXPECT_TRUE(worker.memory->HotRowIs(0, 1, 65));
  EXPECT_EQ(worker.memory->HostRow(0, 2, 99)[655], 0x72);
}

// Newest rows of a request in the order of its rows, and explicit sources between them.
TEST_F(NodeDataTest, BackupSources) {
  const CacheLayout layout =
      SmallLayout{.top_k = 4, .hot_size = 8, .rows_per_request = 2, .groups = 2}.Make();
  Worker worker = OpenAndAttach(layout);
  Admit(worker, "A");
  Admit(worker, "B");
  Assign(worker, "A", 1);
  for (int group = 0; group < 2; ++group) {
    for (const int32_t row : {3, 8, 9, 128 + 8}) {
      std::fill_n(worker.memory->HotRow(group, 0, row), 656,
                  static_cast<uint8_t>(row + 16 * group));
    }
  }
  ASSERT_TRUE(Backup(worker, {{.request_id = "A", .slot = 1},
                              {.request_id = "A", .slot = 2, .source_hot_row = 3},
                              {.request_id = "B", .slot = 4},
                              {.request_id = "A", .slot = 3}})
                  .ok());
  for (int group = 0; group < 2; ++group) {
    const std::vector<std::pair<int32_t, int32_t>> expected = {{1, 8}, {2, 3}, {3, 9}, {4, 136}};
    for (const auto& [slot, row] : expected) {
      EXPECT_EQ(worker.memory->HostRow(group, 0, slot)[0], static_cast<uint8_t>(row + 16 * group))
          << "slot " << slot;
    }
  }
  ASSERT_TRUE(
      Backup(worker, {{.request_id = "A", .slot = 11}, {.request_id = "A", .slot = 12}}).ok());
  EXPECT_EQ(worker.memory->HostRow(0, 0, 12)[0], 9);
  EXPECT_TRUE(IsError(Backup(worker, {{.request_id = "A", .slot = 1},
                                      {.request_id = "A", .slot = 2},
                                      {.request_id = "A", .slot = 3}}),
                      Code::kInvalidArgument, "REQUEST_REPEATED"));
  for (const int32_t row : {-1, 4 * 128}) {
    EXPECT_TRUE(IsError(Backup(worker, {{.request_id = "A", .slot = 1, .source_hot_row = row}}),
                        Code::kInvalidArgument, "FIELD_INVALID"));
  }
  EXPECT_TRUE(Backup(worker, {}).ok());
}

TEST_F(NodeDataTest, Tickets) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  Admit(worker, "r");
  const auto on_ticket = [&](int64_t ticket, OperationDone done) {
    return node().OnTicket(worker.session, "kv", ticket, std::move(done));
  };
  EXPECT_TRUE(IsError(on_ticket(1, nullptr), Code::kNotFound, "TICKET_UNKNOWN"));
  EXPECT_TRUE(IsError(on_ticket(0, nullptr), Code::kNotFound, "TICKET_UNKNOWN"));
  plan().FailWorkNth(Op::kSwapIn, 2, MakeError(Code::kInternal, "DEVICE_ERROR", "launch failed"));
  const OperationOutcome good = Batch(worker, {{"r", {1}, -1}});
  const OperationOutcome bad = Batch(worker, {{"r", {1}, -1}});
  EXPECT_EQ(good.ticket, 1);
  EXPECT_TRUE(IsError(bad.status, Code::kInternal, "DEVICE_ERROR"));
  EXPECT_EQ(bad.ticket, 2);
  EXPECT_THAT(bad.rows, IsEmpty());
  EXPECT_EQ(Batch(worker, {{"r", {1}, -1}}).ticket, 3) << "the next one works";
  OperationOutcome outcome;
  const auto keep = [&](OperationOutcome o) { outcome = std::move(o); };
  EXPECT_TRUE(on_ticket(1, keep).ok());
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_EQ(outcome.ticket, 3) << "the newest that is done";
  EXPECT_TRUE(on_ticket(2, keep).ok());
  EXPECT_TRUE(IsError(outcome.status, Code::kInternal, "DEVICE_ERROR"));
  EXPECT_TRUE(IsError(on_ticket(4, keep), Code::kNotFound, "TICKET_UNKNOWN"));
}

// However many operations there may be.
TEST_F(NodeDataTest, BackupsInMessagesWaitForTheDeviceUpToALimit) {
  const Worker worker = OpenAndAttach(SmallLayout{}.Make());
  const std::string name(kNameBytesMax, 'x');
  Admit(worker, name);
  const Worker other = OpenAndAttach(SmallLayout{}.Make());
  Admit(other, "r");
  BackupCall call;
  call.cache = "kv";
  call.inline_rows.emplace(kInlineBackupRowsMax, InlineBackupRow{name, 1, 0});
  const auto delay = plan().DelayNth(Op::kBackup, 1);
  const auto back_up = [&] { return node().Backup(worker.session, call, nullptr).status(); };
  int taken = 0;
  absl::Status refused;
  while (taken < 100 && (refused = back_up()).ok()) ++taken;
  EXPECT_TRUE(IsError(refused, Code::kResourceExhausted, "LIMIT_REACHED"));
  // The names alone, and with what belongs to them.
  EXPECT_LE(taken, kInlineBytesInFlightMax / (kInlineBackupRowsMax * int64_t{kNameBytesMax}));
  EXPECT_GE(taken, 36) << "what a RunSteps call has under way at a time";
  EXPECT_EQ(ErrorMetadataOf(refused)["limit"], "33554432");
  EXPECT_NE(ErrorMetadataOf(refused)["used"], "");
  EXPECT_TRUE(RetryDelayOf(refused).has_value());
  EXPECT_TRUE(Backup(other, {{.request_id = "r", .slot = 1}}).ok()) << "each session has its own";
  delay->Release();
  while (Stats().sessions[0].operations_in_flight > 0) std::this_thread::yield();
  for (int i = 0; i < 3; ++i) EXPECT_TRUE(back_up().ok());
}

class NodeLimitTest : public NodeFixture {
 protected:
  NodeLimitTest()
      : NodeFixture({.node = {.sessions_max = 2, .caches_max = 1, .operations_in_flight_max = 2}}) {
  }
};

TEST_F(NodeLimitTest, LimitsSayWhenToRetry) {
  const auto is_limit = [](const absl::Status& status, const std::string& limit) {
    EXPECT_TRUE(IsError(status, Code::kResourceExhausted, "LIMIT_REACHED"));
    EXPECT_EQ(ErrorMetadataOf(status)["limit"], limit);
    EXPECT_TRUE(RetryDelayOf(status).has_value());
  };
  const CacheLayout layout = SmallLayout{}.Make();
  Worker worker = OpenAndAttach(layout);
  Open();
  is_limit(node().OpenSession("third", {}, nullptr).status(), "2");
  is_limit(node().AttachCache(worker.session, "second", layout, "", Soon()).status(), "1");

  Admit(worker, "r");
  const auto delay = plan().DelayNth(Op::kSwapIn, 1);
  SwapInCall call;
  call.cache = "kv";
  call.step_rows = 1;
  for (int i = 0; i < 2; ++i) {
    ASSERT_TRUE(node().SwapIn(worker.session, call, nullptr).ok());
    ASSERT_TRUE(node().OnTicket(worker.session, "kv", 1, nullptr).ok());
  }
  is_limit(node().SwapIn(worker.session, call, nullptr).status(), "2");
  is_limit(node().OnTicket(worker.session, "kv", 1, nullptr), "2");
  delay->Release();
  while (Stats().sessions[0].operations_in_flight > 0) std::this_thread::yield();
  EXPECT_TRUE(node().SwapIn(worker.session, call, nullptr).ok());
}

}  // namespace
}  // namespace kvtier
