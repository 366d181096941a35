#include "server/session/node_life.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "server/core/status_macros.h"
#include "server/session/wait.h"

namespace kvtier {
namespace {

constexpr char kCache[] = "kv";
constexpr char kRequest[] = "r";
constexpr int32_t kBlockSize = 64;
constexpr Peer kPeer = {.pid = 1, .uid = 1000};

}  // namespace

NodeLife::NodeLife(const Options& options)
    : NodeFixture(options),
      has_folder_(options.has_folder),
      layout_(SmallLayout{.top_k = 2,
                          .hot_size = 4,
                          .block_count = 4,
                          .max_requests = 1,
                          .block_size = kBlockSize,
                          .layers = 2}
                  .Make()) {}

int NodeLife::Live(const Judge& judge) {
  BeginOwnWork();
  RestartEmpty();
  OnBegin();
  int met = 0;
  for (const Step& step : Steps()) {
    SCOPED_TRACE(step.name);
    const int failed = LiveStep(step, judge);
    met += failed;
    if (failed > failed_attempts_max_) break;
  }
  one_.memory.reset();
  two_.memory.reset();
  EndOwnWork();
  EXPECT_TRUE(node().CloseAllSessions("the test ends", absl::InfiniteFuture()).ok());
  BeginOwnWork();
  ExpectBaseline();
  // It is kept for the next daemon: its one file, whatever the attempts were.
  EXPECT_EQ(CacheFiles().size(), has_folder_ ? 1u : 0u);
  return met;
}

int NodeLife::LiveStep(const Step& step, const Judge& judge) {
  const std::vector<int64_t> before = State();
  for (int failed = 0;; ++failed) {
    EndOwnWork();
    const absl::Status status = step.run();
    BeginOwnWork();
    if (status.ok()) return failed;
    if (failed == failed_attempts_max_) {
      ADD_FAILURE() << "the next attempt: " << status;
      return failed + 1;
    }
    met_steps_.insert(step.name);
    EXPECT_TRUE(judge(status));
    EXPECT_EQ(State(), before) << "something was left half done";
  }
}

std::vector<int64_t> NodeLife::State() {
  std::vector<int64_t> state = {static_cast<int64_t>(node().Sessions().size())};
  for (const SessionSnapshot& session : node().Sessions()) {
    state.push_back(static_cast<int64_t>(session.caches.size()));
  }
  const auto snapshot = node().Snapshot("");
  for (const CacheSnapshot& cache : snapshot->caches) {
    WaitForQuarantine(cache.cache);
    const CacheSnapshot now = Stats(cache.cache);
    state.insert(state.end(),
                 {now.blocks_used, now.blocks_free, now.blocks_reserved, now.blocks_kept});
    for (const SessionCacheSnapshot& session : now.sessions) state.push_back(session.requests);
    const auto requests = node().Requests(cache.cache);
    for (const RequestSnapshot& request : requests.value()) {
      state.insert(state.end(), {request.region, request.blocks, request.reserved_blocks});
    }
  }
  state.push_back(pool().stats().used_bytes);
  return state;
}

std::vector<NodeLife::Step> NodeLife::Steps() {
  std::vector<Step> steps = {
      {"open", [this] { return OpenStep(&one_); }},
      {"open the other", [this] { return OpenStep(&two_); }},
      {"attach", [this] { return AttachStep(&one_); }},
      {"attach again", [this] { return AttachStep(&one_); }},
      {"attach the other", [this] { return AttachStep(&two_); }},
      {"admit", [this] { return AdmitStep(one_); }},
      {"admit the other", [this] { return AdmitStep(two_); }},
      {"assign", [this] { return AssignStep(2); }},
      {"backup", [this] { return BackupStep(0, 1); }},
      {"backup from step buffers", [this] { return BackupFromStepBuffers(1, 1); }},
      {"swap in", [this] { return SwapInStep(1); }},
      {"swap in again", [this] { return SwapInStep(1); }},
      {"swap in from step buffers", [this] { return SwapInFromStepBuffers(1); }},
  };
  std::vector<Step> more = RecycledSteps();
  std::move(more.begin(), more.end(), std::back_inserter(steps));
  return steps;
}

std::vector<NodeLife::Step> NodeLife::RecycledSteps() {
  return {
      {"release", [this] { return ReleaseStep(one_); }},
      {"admit anew", [this] { return AdmitStep(one_); }},
      {"assign recycled blocks", [this] { return AssignStep(3); }},
      {"backup anew", [this] { return BackupStep(0, 2); }},
      {"backup anew again", [this] { return BackupStep(1, 2); }},
      {"swap in anew", [this] { return SwapInStep(2); }},
      {"invalidate",
       [this] { return node().InvalidateBlocks(one_.session, kCache, {0}, Soon()).status(); }},
      {"free",
       [this] { return node().FreeBlocks(one_.session, kCache, kRequest, {2}, Soon()).status(); }},
      {"statistics", [this] { return node().Snapshot("").status(); }},
      {"list kept blocks",
       [this] { return node().ListKeptBlocks(one_.session, kCache, 0, 10).status(); }},
      {"release the other", [this] { return ReleaseStep(two_); }},
      {"detach the other",
       [this] { return node().DetachCache(two_.session, kCache, Soon()).status(); }},
      {"evict the other",
       [this] { return node().EvictSession(std::exchange(two_.session, ""), "by an operator"); }},
      {"drain",
       [this] {
         node().Drain("the test ends");
         return absl::OkStatus();
       }},
      {"detach", [this] { return node().DetachCache(one_.session, kCache, Soon()).status(); }},
  };
}

absl::Status NodeLife::OpenStep(Worker* worker) {
  KVTIER_ASSIGN_OR_RETURN(worker->session, node().OpenSession("worker", kPeer, nullptr));
  return absl::OkStatus();
}

absl::Status NodeLife::AttachStep(Worker* worker) {
  KVTIER_ASSIGN_OR_RETURN(
      worker->attached,
      node().AttachCache(worker->session, kCache, layout_, "", Soon(),
                         {.retain = Retention{.blocks_max = 4, .duration = absl::Seconds(10)}}));
  BeginOwnWork();
  worker->cache = kCache;
  worker->memory = std::make_unique<WorkerMemory>(&node(), kPeer, worker->attached);
  EndOwnWork();
  return absl::OkStatus();
}

absl::Status NodeLife::AdmitStep(const Worker& worker) {
  return node().AdmitRequest(worker.session, kCache, kRequest, 1, Soon()).status();
}

absl::Status NodeLife::AssignStep(int32_t count) {
  return node().AssignBlocks(one_.session, kCache, kRequest, count, {}, {}, Soon()).status();
}

absl::Status NodeLife::ReleaseStep(const Worker& worker) {
  return node().ReleaseRequest(worker.session, kCache, kRequest, Soon()).status();
}

absl::Status NodeLife::BackupStep(int32_t position, uint8_t salt) {
  const int32_t slot = SlotOf(position);
  FillNewest(slot, salt);
  return Backup(one_, {{.request_id = kRequest, .slot = slot}});
}

absl::Status NodeLife::BackupFromStepBuffers(int32_t position, uint8_t salt) {
  const int32_t slot = SlotOf(position);
  FillNewest(slot, salt);
  const TierGeometry& geometry = one_.memory->geometry();
  *one_.memory->StepArray(geometry.num_real_rows) = 1;
  one_.memory->StepArray(geometry.row_to_request)[0] = 0;
  one_.memory->StepArray(geometry.newest_slot)[0] = slot;
  BackupCall call;
  call.cache = kCache;
  call.step_rows = 1;
  return Wait(node().Backup(one_.session, call, nullptr));
}

absl::Status NodeLife::SwapInStep(uint8_t salt) {
  SwapInCall call;
  call.cache = kCache;
  call.inline_rows = {{.request_id = kRequest, .topk = {0, 1}}};
  const OperationOutcome outcome = SwapIn(one_, call);
  KVTIER_RETURN_IF_ERROR(outcome.status);
  for (int32_t i = 0; i < 2 && !lost_writes_; ++i) {
    EXPECT_TRUE(one_.memory->HotRowIs(0, outcome.rows[0].hot_indices[i], SlotOf(i), salt));
  }
  return absl::OkStatus();
}

absl::Status NodeLife::SwapInFromStepBuffers(uint8_t salt) {
  // What an attempt that failed has left, another one would take for hits.
  KVTIER_RETURN_IF_ERROR(
      node().InvalidateBlocks(one_.session, kCache, {SlotOf(0) / kBlockSize}, Soon()).status());
  const TierGeometry& geometry = one_.memory->geometry();
  const GroupGeometry& group = geometry.groups[0];
  *one_.memory->StepArray(geometry.num_real_rows) = 1;
  one_.memory->StepArray(geometry.row_to_request)[0] = 0;
  one_.memory->StepArray(geometry.newest_slot)[0] = kNone;
  for (int32_t i = 0; i < 2; ++i) one_.memory->StepArray(group.topk)[i] = i;
  SwapInCall call;
  call.cache = kCache;
  call.step_rows = 1;
  call.layers = LayerRange{0, 1};
  KVTIER_RETURN_IF_ERROR(Wait(node().SwapIn(one_.session, call, nullptr)));
  const ReplayPlanCall replay = {.cache = kCache, .num_rows = 1};
  KVTIER_RETURN_IF_ERROR(Wait(node().ReplayPlan(one_.session, replay, nullptr)));
  const int32_t* const hot = one_.memory->StepArray(group.hot_indices);
  for (int32_t i = 0; i < 2 && !lost_writes_; ++i) {
    EXPECT_TRUE(one_.memory->HotRowIs(0, hot[i], SlotOf(i), salt));
  }
  return absl::OkStatus();
}

int32_t NodeLife::SlotOf(int32_t position) {
  const std::vector<int32_t> table = one_.memory->TableRow(0);
  return table[position / kBlockSize] * kBlockSize + position % kBlockSize;
}

void NodeLife::FillNewest(int32_t slot, uint8_t salt) {
  const GroupShape shape = ShapeOf(layout_, 0);
  for (int layer = 0; layer < 2; ++layer) {
    uint8_t* const bytes = one_.memory->HotRow(0, layer, shape.hot_size);
    for (int32_t j = 0; j < layout_.groups[0].layers[layer].value_bytes; ++j) {
      bytes[j] = static_cast<uint8_t>(PatternByte(slot, layer, j) + salt);
    }
  }
}

absl::Status NodeLife::Wait(const absl::StatusOr<int64_t>& ticket) {
  KVTIER_RETURN_IF_ERROR(ticket.status());
  const auto completions = std::make_shared<Completions>();
  const auto arrived = completions->Expect();
  const absl::Status asked =
      node().OnTicket(one_.session, kCache, *ticket,
                      [arrived](const OperationOutcome& outcome) { arrived(outcome.status); });
  if (!asked.ok()) return asked;
  return completions->Wait(SystemClock(), absl::InfiniteFuture());
}

}  // namespace kvtier
