// Caches, requests and both planes, against a daemon that does as it is told. What the real one
// does is in tests/e2e.
#include "client/cache.h"

#include <cstring>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/error.h"
#include "client/steps.h"
#include "client/testing/fake_daemon.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "proto/google/rpc/error_details.pb.h"

namespace kvtier::client {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kPatience = absl::Seconds(30);

class CacheTest : public ::testing::Test {
 protected:
  CacheTest() { Open(absl::Seconds(30)); }

  void Open(absl::Duration call_timeout) {
    absl::StatusOr<Session> session =
        Session::Open({.socket_path = daemon_.socket_path(), .call_timeout = call_timeout});
    EXPECT_TRUE(session.ok()) << session.status();
    session_.emplace(*std::move(session));
  }
  absl::StatusOr<Cache> Attach() {
    return Cache::Attach(*session_, {.cache = "kv", .layout = SmallLayout()});
  }
  // Block `index` of region 0's table becomes `block`, as the daemon would write it.
  void SetBlock(int index, int32_t block) {
    daemon_.cache().Array<int32_t>(daemon_.cache().answer().buffers().block_table())[index] = block;
  }

  FakeDaemon daemon_;
  std::optional<Session> session_;
};

TEST_F(CacheTest, AttachesAndDetaches) {
  {
    const absl::StatusOr<Cache> cache = Attach();
    ASSERT_TRUE(cache.ok()) << cache.status();
    EXPECT_EQ(cache->name(), "kv");
    EXPECT_TRUE(cache->created());
    EXPECT_EQ(cache->device().uuid(), "CPU-0");
    EXPECT_EQ(cache->layout().groups(0).hot_size(), 16);
  }
  EXPECT_THAT(daemon_.calls(), ElementsAre("OpenSession ", "AttachCache kv", "DetachCache kv"));
  EXPECT_TRUE(Attach().ok());
}

TEST_F(CacheTest, ASessionHasACacheOnce) {
  const absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  const absl::Status status = Attach().status();
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists) << status;
  EXPECT_EQ(ErrorReasonOf(status), "ID_CONFLICT");
}

TEST_F(CacheTest, AnAnswerThatIsWrongLeavesNothingAttached) {
  daemon_.cache().answer().mutable_buffers()->mutable_block_table()->set_segment_index(77);
  EXPECT_EQ(Attach().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(daemon_.calls().back(), "DetachCache kv");
  daemon_.cache().answer().mutable_buffers()->mutable_block_table()->set_segment_index(4);
  EXPECT_TRUE(Attach().ok());
}

TEST_F(CacheTest, ATokenThatIsNotKnownIsAnError) {
  daemon_.cache().answer().mutable_segments(2)->set_fd_token("another");
  daemon_.cache().ReplaceDescriptor(2, 1, 0);
  const absl::Status status = Attach().status();
  EXPECT_FALSE(status.ok());
}

TEST_F(CacheTest, WaitsWhileThePoolIsPinned) {
  ::google::rpc::ErrorInfo info;
  info.set_reason("POOL_PINNING");
  info.set_domain("kvtier.v1");
  ::google::rpc::RetryInfo retry;
  retry.mutable_retry_delay()->set_nanos(1000000);
  ::google::rpc::Status details;
  details.add_details()->PackFrom(info);
  details.add_details()->PackFrom(retry);
  const grpc::Status pinning(grpc::StatusCode::UNAVAILABLE, "pinning", details.SerializeAsString());
  daemon_.FailCalls(pinning, 1);
  EXPECT_EQ(ErrorReasonOf(Attach().status()), "POOL_PINNING");
  daemon_.FailCalls(pinning, 3);
  const absl::StatusOr<Cache> cache = Cache::Attach(
      *session_, {.cache = "kv", .layout = SmallLayout(), .wait_for_pool = kPatience});
  EXPECT_TRUE(cache.ok()) << cache.status();
}

TEST_F(CacheTest, AttachingHasATimeOfItsOwn) {
  Open(absl::Seconds(5));
  ASSERT_TRUE(Attach().ok());
  EXPECT_GT(daemon_.attach_patience(), absl::Seconds(30));
  EXPECT_LT(daemon_.attach_patience(), absl::Seconds(90)) << "60, as gRPC rounds it";
  ASSERT_TRUE(
      Cache::Attach(*session_,
                    {.cache = "kv", .layout = SmallLayout(), .attach_timeout = absl::Minutes(8)})
          .ok());
  EXPECT_GT(daemon_.attach_patience(), absl::Minutes(7));
}

TEST_F(CacheTest, ArgumentsAreChecked) {
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  const auto expect_refused = [](const absl::Status& status, const std::string& field) {
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
    EXPECT_EQ(ErrorMetadataOf(status)["field"], field);
  };
  const LayerSpan too_many = {.first_layer = 1, .layer_count = 2};
  const LayerSpan overflow = {.first_layer = INT32_MAX, .layer_count = INT32_MAX};
  const LayerSpan negative = {.first_layer = -1, .layer_count = 1};
  expect_refused(cache->SwapIn(2, 0), "group");
  expect_refused(cache->SwapIn(-1, 0), "group");
  expect_refused(cache->SwapIn(0, 3), "num_rows");
  expect_refused(cache->SwapIn(0, -1), "num_rows");
  expect_refused(cache->SwapIn(0, 1, {.layers = too_many}), "layers");
  expect_refused(cache->SwapIn(0, 1, {.layers = overflow}), "layers");
  expect_refused(cache->ReplayPlan(0, 1, negative), "layers");
  expect_refused(cache->BackupNewest(3), "num_rows");
  expect_refused(cache->SwapInRpc(2, 0).status(), "group");
  expect_refused(cache->ReplayPlanRpc(0, 3).status(), "num_rows");
  expect_refused(cache->BackupRpc(-1).status(), "num_rows");
  expect_refused(cache->MarkBacked(5, {}), "group");
  const std::vector<int32_t> slots = {3, 32};
  EXPECT_EQ(ErrorReasonOf(cache->MarkBacked(0, slots)), "SLOT_OUT_OF_RANGE");
  EXPECT_EQ(cache->view().groups[0].backed_generation[3], 0) << "all or nothing";
  expect_refused(
      Cache::Attach(*session_, {.cache = "b", .layout = SmallLayout(), .kernel_threads = 0})
          .status(),
      "kernel_threads");
  expect_refused(
      Cache::Attach(*session_,
                    {.cache = "b", .layout = SmallLayout(), .attach_timeout = absl::ZeroDuration()})
          .status(),
      "attach_timeout");
}

TEST_F(CacheTest, TensorsAreChecked) {
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  alignas(16) static const uint8_t bytes[4 * 48] = {};
  const RowLayout narrow = {.value_bytes = 32, .row_stride = 32};
  const RowLayout wide = {.value_bytes = 48, .row_stride = 48};
  const std::vector<int32_t> rows = {0, 1}, slots = {4, 5};
  const auto backup = [&](std::vector<TensorLayer> layers, std::vector<int32_t> to) {
    return cache->BackupTensor(0, layers, 4, rows, to).code();
  };
  EXPECT_EQ(backup({{bytes, narrow}, {bytes, wide}}, slots), absl::StatusCode::kOk);
  EXPECT_EQ(backup({{bytes, narrow}}, slots), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backup({{bytes, wide}, {bytes, wide}}, slots), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backup({{nullptr, narrow}, {bytes, wide}}, slots), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backup({{bytes + 8, narrow}, {bytes, wide}}, slots),
            absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backup({{bytes, narrow}, {bytes, wide}}, {4}), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(backup({{bytes, narrow}, {bytes, wide}}, {4, 32}), absl::StatusCode::kOutOfRange);
  EXPECT_EQ(backup({{bytes, narrow}, {bytes, wide}}, {4, -1}), absl::StatusCode::kOk);
}

// Prefill, newest rows, swap-in and plan, all layers, checked byte by byte.
TEST_F(CacheTest, InProcessPlaneMovesRows) {
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  const CacheView& view = cache->view();
  SetBlock(0, 3);
  SetBlock(1, 5);
  // Positions 0..5 are prefilled: layer l of position p holds 16 * l + p.
  std::vector<std::vector<uint8_t>> bytes = {std::vector<uint8_t>(6 * 32),
                                             std::vector<uint8_t>(6 * 48)};
  for (int p = 0; p < 6; ++p) {
    std::memset(&bytes[0][p * 32], p, 32);
    std::memset(&bytes[1][p * 48], 16 + p, 48);
  }
  const std::vector<TensorLayer> tensors = {
      {bytes[0].data(), {.value_bytes = 32, .row_stride = 32}},
      {bytes[1].data(), {.value_bytes = 48, .row_stride = 48}}};
  const std::vector<int32_t> rows = {0, 1, 2, 3, 4, 5}, slots = {12, 13, 14, 15, 20, 21};
  ASSERT_TRUE(cache->BackupTensor(0, tensors, 6, rows, slots).ok());

  // The step of position 6: its row is new, 2 and 5 were prefilled, 7 was never written.
  view.row_to_request[0] = 0;
  view.newest_slot[0] = 22;
  *view.num_real_rows = 1;
  const std::vector<int32_t> topk = {6, 2, 5, 7, -1, 2, 99, 0};
  std::copy(topk.begin(), topk.end(), view.groups[0].topk.begin());
  for (int l = 0; l < 2; ++l) {
    const std::span<uint8_t> row =
        view.groups[0].layers[l].hot.value(view.groups[0].newest_hot_row(0));
    std::fill(row.begin(), row.end(), 16 * l + 6);
  }
  ASSERT_TRUE(cache->SwapIn(0, 1, {.layers = LayerSpan{0, 1}}).ok());
  ASSERT_TRUE(cache->ReplayPlan(0, 1).ok());
  EXPECT_THAT(view.groups[0].hot_indices.first(8), ElementsAre(16, 0, 1, 2, -1, 0, -1, 3));
  EXPECT_THAT(view.groups[0].miss_mask.first(8), ElementsAre(0, 1, 1, 0, 0, 0, 0, 1));
  for (int l = 0; l < 2; ++l) {
    for (const auto& [hot_row, value] : std::vector<std::pair<int, int>>{
             {16, 16 * l + 6}, {0, 16 * l + 2}, {1, 16 * l + 5}, {2, 0}, {3, 16 * l}}) {
      EXPECT_THAT(view.groups[0].layers[l].hot.value(hot_row), ::testing::Each(value))
          << "layer " << l << ", hot row " << hot_row;
    }
  }
  const Counts counts = cache->counts(0);
  EXPECT_EQ(counts[Counter::kMisses], 4);
  EXPECT_EQ(counts[Counter::kUnbackedReads], 1);
  EXPECT_EQ(counts[Counter::kBytesCopied], 3 * (32 + 48));

  ASSERT_TRUE(cache->BackupNewest(1).ok());
  EXPECT_THAT(view.groups[0].layers[1].host.value(22), ::testing::Each(22));
  EXPECT_EQ(view.groups[0].backed_generation[22], 1);
  EXPECT_EQ(view.groups[1].backed_generation[22], 1);
}

TEST_F(CacheTest, RowsThatTheWorkerWroteCanBeMarked) {
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  const std::vector<int32_t> slots = {9};
  ASSERT_TRUE(cache->MarkBacked(1, slots).ok());
  EXPECT_EQ(cache->view().groups[1].backed_generation[9], 1);
  EXPECT_EQ(cache->view().groups[0].backed_generation[9], 0);
}

TEST_F(CacheTest, RequestsAreReleasedByTheirDestructor) {
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  {
    absl::StatusOr<Request> request = cache->Admit("r1", 4);
    ASSERT_TRUE(request.ok()) << request.status();
    EXPECT_EQ(request->region(), 0);
    const absl::StatusOr<AssignedBlocks> blocks = request->AssignBlocks(2);
    ASSERT_TRUE(blocks.ok()) << blocks.status();
    EXPECT_THAT(blocks->block_ids, ElementsAre(0, 1));
    SetBlock(0, 7);
    EXPECT_EQ(request->SlotOf(3), 31);
    EXPECT_EQ(request->SlotOf(4), -1);
    EXPECT_EQ(request->SlotOf(-1), -1);
    request->SetSequenceLength(4);
    EXPECT_EQ(cache->view().sequence_lengths[0], 4);
    Request moved = *std::move(request);
    EXPECT_EQ(moved.block_table()[0], 7);
  }
  EXPECT_EQ(daemon_.calls().back(), "ReleaseRequest r1");
  absl::StatusOr<Request> second = cache->Admit("r2");
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(*second->Release(), 1);
  const size_t calls = daemon_.calls().size();
  second = absl::CancelledError();
  EXPECT_EQ(daemon_.calls().size(), calls) << "released once";
}

TEST_F(CacheTest, ARegionThatIsNoneIsRefused) {
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  const absl::StatusOr<Request> first = cache->Admit("r1"), second = cache->Admit("r2");
  EXPECT_EQ(cache->Admit("r3").status().code(), absl::StatusCode::kInternal);
}

TEST_F(CacheTest, ARequestOutlivesItsCache) {
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  absl::StatusOr<Request> request = cache->Admit("r1");
  ASSERT_TRUE(request.ok()) << request.status();
  SetBlock(0, 7);
  cache = absl::CancelledError();
  EXPECT_EQ(request->block_table()[0], 7);
  EXPECT_EQ(request->AssignBlocks(1).status().code(), absl::StatusCode::kFailedPrecondition);
}

TEST_F(CacheTest, CallsEndAtTheirDeadline) {
  Open(absl::Milliseconds(200));
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  daemon_.Hang(true);
  const absl::Time start = absl::Now();
  const absl::Status status = cache->Admit("r1").status();
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("AdmitRequest"));
  EXPECT_LT(absl::Now() - start, kPatience);
  daemon_.Hang(false);
}

TEST_F(CacheTest, ALostDaemonLeavesTheMemory) {
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  daemon_.EndSessions(grpc::Status(grpc::StatusCode::UNAVAILABLE, "Socket closed"));
  ASSERT_TRUE(session_->WaitUntilEnded(kPatience));
  EXPECT_TRUE(cache->SwapIn(0, 0).ok());
  EXPECT_TRUE(cache->ReplayPlan(0, 0).ok());
  EXPECT_EQ(cache->BackupNewest(0).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(cache->SwapInRpc(0, 0).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(cache->Admit("r").status().code(), absl::StatusCode::kUnavailable);
}

TEST_F(CacheTest, ARevokedSessionTouchesNothing) {
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  v1::SessionEvent event;
  event.mutable_revoked()->set_message("evicted");
  daemon_.Tell(event);
  daemon_.EndSessions(grpc::Status::OK);
  ASSERT_TRUE(session_->WaitUntilEnded(kPatience));
  EXPECT_EQ(ErrorReasonOf(cache->SwapIn(0, 0)), "SESSION_UNKNOWN");
  EXPECT_EQ(ErrorReasonOf(cache->BackupNewest(0)), "SESSION_UNKNOWN");
}

TEST_F(CacheTest, StepsAreAnsweredInOrder) {
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  absl::StatusOr<Steps> steps = Steps::Open(*cache);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->Next().status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(*steps->SwapIn(0, 1), 1);
  EXPECT_EQ(*steps->Backup(1, /*wait=*/true), 2);
  EXPECT_EQ(*steps->WaitTicket(2), 3);
  EXPECT_EQ(steps->in_flight(), 3);
  for (int64_t id = 1; id <= 3; ++id) {
    const absl::StatusOr<StepResult> result = steps->Next();
    ASSERT_TRUE(result.ok()) << result.status();
    EXPECT_EQ(result->step_id, id);
    EXPECT_TRUE(result->status.ok());
    EXPECT_EQ(result->ticket.number, std::min<int64_t>(id, 2));
    EXPECT_EQ(result->ticket.completed, id > 1);
  }
}

TEST_F(CacheTest, AFailedStepDoesNotEndTheCall) {
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  absl::StatusOr<Steps> steps = Steps::Open(*cache);
  ASSERT_TRUE(steps.ok()) << steps.status();
  EXPECT_EQ(steps->SwapIn(9, 1).status().code(), absl::StatusCode::kInvalidArgument);
  daemon_.FailCalls(grpc::Status(grpc::StatusCode::FAILED_PRECONDITION, "no such input"));
  ASSERT_TRUE(steps->SwapIn(0, 1).ok());
  absl::StatusOr<StepResult> result = steps->Next();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_EQ(result->status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReasonOf(result->status), "INPUT_MISMATCH");
  EXPECT_EQ(ErrorMetadataOf(result->status)["field"], "step");
  daemon_.FailCalls(grpc::Status::OK);
  ASSERT_TRUE(steps->SwapIn(0, 1).ok());
  result = steps->Next();
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_TRUE(result->status.ok());
}

TEST_F(CacheTest, AnAnswerThatIsNoneBreaksTheCall) {
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  absl::StatusOr<Steps> steps = Steps::Open(*cache);
  ASSERT_TRUE(steps.ok()) << steps.status();
  ASSERT_TRUE(steps->ReplayPlan(0, 1).ok());
  EXPECT_EQ(steps->Next().status().code(), absl::StatusCode::kInternal);
  EXPECT_EQ(steps->SwapIn(0, 1).status().code(), absl::StatusCode::kInternal);
}

TEST_F(CacheTest, StepsInFlightAreBounded) {
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  absl::StatusOr<Steps> steps = Steps::Open(*cache);
  ASSERT_TRUE(steps.ok()) << steps.status();
  for (int32_t i = 0; i < Steps::kInFlightMax; ++i) ASSERT_TRUE(steps->SwapIn(0, 1).ok());
  EXPECT_EQ(steps->SwapIn(0, 1).status().code(), absl::StatusCode::kFailedPrecondition);
  ASSERT_TRUE(steps->Next().ok());
  EXPECT_TRUE(steps->SwapIn(0, 1).ok());
  while (steps->in_flight() > 0) ASSERT_TRUE(steps->Next().ok());
}

TEST_F(CacheTest, StepsEndAtTheirDeadline) {
  Open(absl::Milliseconds(200));
  absl::StatusOr<Cache> cache = Attach();
  ASSERT_TRUE(cache.ok()) << cache.status();
  absl::StatusOr<Steps> steps = Steps::Open(*cache);
  ASSERT_TRUE(steps.ok()) << steps.status();
  daemon_.Hang(true);
  ASSERT_TRUE(steps->SwapIn(0, 1).ok());
  EXPECT_EQ(steps->Next().status().code(), absl::StatusCode::kDeadlineExceeded);
  EXPECT_EQ(steps->SwapIn(0, 1).status().code(), absl::StatusCode::kDeadlineExceeded);
  daemon_.Hang(false);
}

}  // namespace
}  // namespace kvtier::client
