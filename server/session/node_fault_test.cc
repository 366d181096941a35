// Every call of the backend fails once, at every place of a worker's life: the verb that met it
// says so and leaves things as they were, the next attempt works, and nothing leaks.

#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "server/core/error.h"
#include "server/device/cpu/cpu_backend.h"
#include "server/session/node.h"
#include "server/session/node_fixture.h"

namespace kvtier {
namespace {

using ::testing::Each;
using Op = DeviceOperation;

absl::Status Fault() {
  return MakeError(absl::StatusCode::kInternal, "DEVICE_ERROR", "injected",
                   {{"device_error", "injected"}});
}

class NodeFaultTest : public NodeFixture {
 protected:
  using Step = std::pair<std::string, std::function<absl::Status()>>;

  // What a verb must leave as it was when it fails.
  std::vector<int64_t> State() {
    std::vector<int64_t> state = {static_cast<int64_t>(node().Sessions().size())};
    for (const SessionSnapshot& session : node().Sessions()) {
      state.push_back(static_cast<int64_t>(session.caches.size()));
    }
    const auto snapshot = node().Snapshot("");
    for (const CacheSnapshot& cache : snapshot->caches) {
      WaitForQuarantine(cache.cache);
      const CacheSnapshot now = Stats(cache.cache);
      state.insert(state.end(), {now.blocks_used, now.blocks_free, now.blocks_reserved});
      for (const SessionCacheSnapshot& session : now.sessions) state.push_back(session.requests);
      const auto requests = node().Requests(cache.cache);
      for (const RequestSnapshot& request : requests.value()) {
        state.insert(state.end(), {request.region, request.blocks, request.reserved_blocks});
      }
    }
    state.push_back(pool().stats().used_bytes);
    return state;
  }

  absl::Status AttachStep(Worker* worker) {
    auto attached = node().AttachCache(worker->session, "kv", layout_, "", Soon());
    if (!attached.ok()) return attached.status();
    worker->cache = "kv";
    worker->attached = *attached;
    worker->memory =
        std::make_unique<WorkerMemory>(&node(), Peer{.pid = 1, .uid = 1000}, worker->attached);
    return absl::OkStatus();
  }

  // Rows 64 and 65 by position, which must be `salt`'s.
  absl::Status SwapInStep(const Worker& worker, uint8_t salt) {
    SwapInCall call;
    call.cache = "kv";
    call.inline_rows = {{.request_id = "r", .topk = {0, 1}}};
    const OperationOutcome outcome = SwapIn(worker, call);
    if (!outcome.status.ok()) return outcome.status;
    const int32_t first_slot = worker.memory->TableRow(0)[0] * 64;
    for (int32_t i = 0; i < 2 && !lost_writes_; ++i) {
      EXPECT_TRUE(worker.memory->HotRowIs(0, outcome.rows[0].hot_indices[i], first_slot + i, salt));
    }
    return absl::OkStatus();
  }

  // Two sessions, so that invalidations and quarantines cross device streams.
  std::vector<Step> Life() {
    const auto backup = [this](int32_t position, uint8_t salt) {
      const int32_t slot = one_.memory->TableRow(0)[0] * 64 + position;
      return BackupPattern(one_, "r", 0, slot, salt);
    };
    const auto assign = [this](int32_t count) {
      return node().AssignBlocks(one_.session, "kv", "r", count, {}, {}, Soon()).status();
    };
    const auto admit = [this](const Worker& worker) {
      return node().AdmitRequest(worker.session, "kv", "r", 1, Soon()).status();
    };
    const auto release = [this](const Worker& worker) {
      return node().ReleaseRequest(worker.session, "kv", "r", Soon()).status();
    };
    return {
        {"attach", [this] { return AttachStep(&one_); }},
        {"attach the other", [this] { return AttachStep(&two_); }},
        {"admit", [=, this] { return admit(one_); }},
        {"admit the other", [=, this] { return admit(two_); }},
        {"assign", [=] { return assign(2); }},
        {"backup", [=] { return backup(0, 1); }},
        {"backup again", [=] { return backup(1, 1); }},
        {"swap in", [this] { return SwapInStep(one_, 1); }},
        {"swap in again", [this] { return SwapInStep(one_, 1); }},
        {"release", [=, this] { return release(one_); }},
        {"admit anew", [=, this] { return admit(one_); }},
        {"assign recycled blocks", [=] { return assign(3); }},
        {"backup anew", [=] { return backup(0, 2); }},
        {"backup anew again", [=] { return backup(1, 2); }},
        {"swap in anew", [this] { return SwapInStep(one_, 2); }},
        {"invalidate",
         [this] { return node().InvalidateBlocks(one_.session, "kv", {0}, Soon()).status(); }},
        {"free",
         [this] { return node().FreeBlocks(one_.session, "kv", "r", {2}, Soon()).status(); }},
        {"release the other", [=, this] { return release(two_); }},
        {"detach the other",
         [this] { return node().DetachCache(two_.session, "kv", Soon()).status(); }},
        {"detach", [this] { return node().DetachCache(one_.session, "kv", Soon()).status(); }},
    };
  }

  // One life with the planned fault. Returns how many steps met it.
  int Live() {
    one_.session = Open();
    two_.session = Open();
    int met = 0;
    for (const auto& [name, step] : Life()) {
      SCOPED_TRACE(name);
      const std::vector<int64_t> before = State();
      const absl::Status status = step();
      if (status.ok()) continue;
      ++met;
      EXPECT_TRUE(IsError(status, absl::StatusCode::kInternal, "DEVICE_ERROR"));
      EXPECT_EQ(State(), before) << "something was left half done";
      const absl::Status again = step();
      EXPECT_TRUE(again.ok()) << "the next attempt: " << again;
      if (!again.ok()) break;
    }
    one_.memory.reset();
    two_.memory.reset();
    ExpectBaseline();
    return met;
  }

  const CacheLayout layout_ =
      SmallLayout{.top_k = 2, .hot_size = 4, .block_count = 4, .max_requests = 1, .layers = 2}
          .Make();
  Worker one_, two_;
  // A write of inputs is lost, and the step after it runs nevertheless, on what was there before.
  // Its call says so, but what it did cannot be judged. (A GPU runs nothing after that.)
  bool lost_writes_ = false;
};

TEST_F(NodeFaultTest, EveryCallFailsOnce) {
  int met = 0, nth = 1;
  for (;; ++nth) {
    SCOPED_TRACE("call " + std::to_string(nth));
    const int64_t faults = plan().faults();
    plan().FailNthCall(nth, Fault());
    met += Live();
    const bool failed = plan().faults() > faults;
    plan().Clear();
    if (!failed || HasFailure()) break;
    ASSERT_LT(nth, 1000);
  }
  EXPECT_GT(nth, 90) << "the life has fewer calls than it should";
  EXPECT_GT(met, 80);
}

// Work that is taken by the device and then not done.
TEST_F(NodeFaultTest, EveryPieceOfWorkFailsOnce) {
  for (const Op operation : {Op::kSwapIn, Op::kBackup, Op::kInvalidate, Op::kResetRegion,
                             Op::kWrite, Op::kRead, Op::kNotify}) {
    SCOPED_TRACE(std::string(DeviceOperationName(operation)));
    lost_writes_ = operation == Op::kWrite;
    int met = 0, nth = 1;
    for (;; ++nth) {
      SCOPED_TRACE("number " + std::to_string(nth));
      const int64_t faults = plan().faults();
      plan().FailWorkNth(operation, nth, Fault());
      met += Live();
      const bool failed = plan().faults() > faults;
      plan().Clear();
      if (!failed || HasFailure()) break;
      ASSERT_LT(nth, 1000);
    }
    EXPECT_GT(met, 0);
  }
}

}  // namespace
}  // namespace kvtier
