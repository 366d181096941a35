// Sessions that open, attach, leave and die.

#include <algorithm>
#include <memory>
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

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using Code = absl::StatusCode;

class NodeSessionTest : public NodeFixture {
 protected:
  absl::Status AttachStatus(const std::string& session, const CacheLayout& layout,
                            const std::string& device = "") {
    return node().AttachCache(session, "kv", layout, device, Soon()).status();
  }
};

class Recorder : public SessionObserver {
 public:
  void OnDraining(const std::string& message) override {
    MutexLock lock(&mutex_);
    events_.push_back("draining " + message);
  }
  void OnRevoked(const std::string& message) override {
    MutexLock lock(&mutex_);
    events_.push_back("revoked " + message);
  }
  std::vector<std::string> events() const {
    MutexLock lock(&mutex_);
    return events_;
  }

 private:
  mutable Mutex mutex_;
  std::vector<std::string> events_;
};

TEST_F(NodeSessionTest, D01_ADeadWorkerLeavesNothing) {
  const CacheLayout layout = SmallLayout{}.Make();
  Worker two = OpenAndAttach(layout);
  Admit(two, "r");
  Assign(two, "r", 2);
  EXPECT_TRUE(SwapInSlots(two, "r", {1}, -1).status.ok());  // takes its scratch memory
  const int64_t device_bytes = node().DeviceBytesUsed(kCpuDeviceUuid);
  for (int cycle = 0; cycle < 20; ++cycle) {
    Worker one = OpenAndAttach(layout);
    one.memory.reset();
    Admit(one, "r");
    Assign(one, "r", 3);
    const auto delay = plan().DelayNth(DeviceOperation::kSwapIn, 1);
    SwapInCall call;
    call.cache = "kv";
    call.step_rows = 1;
    ASSERT_TRUE(node().SwapIn(one.session, call, nullptr).ok());
    delay->WaitUntilReached();
    node().CloseSession(one.session);
    // Fenced at once.
    EXPECT_TRUE(IsError(node().SwapIn(one.session, call, nullptr).status(), Code::kNotFound,
                        "SESSION_UNKNOWN"));
    ASSERT_EQ(node().Sessions().size(), 1u);
    EXPECT_EQ(node().Sessions()[0].session_id, two.session);
    ASSERT_EQ(Stats().sessions.size(), 1u);
    EXPECT_EQ(Stats().blocks_used, 5) << "its work still runs";
    EXPECT_TRUE(SwapInSlots(two, "r", {1}, -1).status.ok());
    delay->Release();
    while (Stats().blocks_used > 2 || Stats().blocks_quarantined > 0 ||
           node().DeviceBytesUsed(kCpuDeviceUuid) > device_bytes) {
      std::this_thread::yield();
    }
  }
  EXPECT_EQ(Stats().blocks_free, 30);
  two.memory.reset();
  ExpectBaseline();
}

TEST_F(NodeSessionTest, D01_CountersOfTheDeadStay) {
  const CacheLayout layout = SmallLayout{}.Make();
  for (int cycle = 0; cycle < 3; ++cycle) {
    Worker worker = OpenAndAttach(layout);
    const int32_t region = Admit(worker, "r");
    Assign(worker, "r", 1);
    ASSERT_TRUE(BackupPattern(worker, "r", region, 3).ok());
    ASSERT_TRUE(SwapInSlots(worker, "r", {3}, -1).status.ok());
    EXPECT_EQ(Total()[Counter::kMisses], 1) << "a new cache begins at zero";
    ASSERT_TRUE(node().DetachCache(worker.session, "kv", Soon()).ok());
    const auto snapshot = node().Snapshot("");
    ASSERT_TRUE(snapshot.ok());
    EXPECT_THAT(snapshot->caches, IsEmpty());
    EXPECT_EQ(snapshot->total[Counter::kMisses], cycle + 1) << "the node's never go down";
  }
}

TEST_F(NodeSessionTest, D04_AttachingTwiceIsAttachingOnce) {
  const CacheLayout layout = SmallLayout{}.Make();
  Worker first = OpenAndAttach(layout);
  const int64_t device_bytes = node().DeviceBytesUsed(kCpuDeviceUuid);
  Worker again = Attach(first.session, "kv", layout);
  EXPECT_FALSE(again.attached.created);
  EXPECT_EQ(node().DeviceBytesUsed(kCpuDeviceUuid), device_bytes);
  EXPECT_NE(again.attached.segments[0].fd_token, first.attached.segments[0].fd_token);
  EXPECT_EQ(again.attached.segments[0].offset_bytes, first.attached.segments[0].offset_bytes);
  first.memory->HotRow(0, 0, 5)[0] = 0x5A;
  EXPECT_EQ(again.memory->HotRow(0, 0, 5)[0], 0x5A) << "the same memory";

  EXPECT_TRUE(IsError(AttachStatus(first.session, SmallLayout{.row_bytes = 672}.Make()),
                      Code::kAlreadyExists, "ID_CONFLICT"));
  Admit(first, "r");
  EXPECT_TRUE(SwapInSlots(first, "r", {1}, -1).status.ok()) << "the first stays usable";
  // One detach ends both.
  EXPECT_EQ(node().DetachCache(first.session, "kv", Soon()).value_or(false), true);
  EXPECT_TRUE(IsError(node().DetachCache(first.session, "kv", Soon()).status(), Code::kNotFound,
                      "CACHE_UNKNOWN"));
  first.memory.reset();
  again.memory.reset();
  ExpectBaseline();
}

TEST_F(NodeSessionTest, D04_ManyCallersMakeOneCache) {
  const CacheLayout layout = SmallLayout{}.Make();
  std::vector<std::string> sessions;
  for (int i = 0; i < 4; ++i) sessions.push_back(Open());
  std::atomic<int> created = 0, attached = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&, i] {
      const auto result = node().AttachCache(sessions[i % 4], "kv", layout, "", Soon());
      attached += result.ok();
      created += result.ok() && result->created;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(attached, 16);
  EXPECT_EQ(created, 1);
  EXPECT_EQ(Stats().sessions.size(), 4u);
  ExpectBaseline();
}

TEST_F(NodeSessionTest, D05_IdsOfAnEarlierDaemonAreStale) {
  const CacheLayout layout = SmallLayout{}.Make();
  Worker worker = OpenAndAttach(layout);
  const int32_t region = Admit(worker, "r");
  Assign(worker, "r", 2);
  ASSERT_TRUE(BackupPattern(worker, "r", region, 70, 0x11).ok());
  const std::string boot_id = node().boot_id();
  RestartNode();
  ASSERT_NE(node().boot_id(), boot_id);
  const absl::Status stale = AttachStatus(worker.session, layout);
  EXPECT_TRUE(IsError(stale, Code::kFailedPrecondition, "BOOT_ID_STALE"));
  EXPECT_EQ(ErrorMetadataOf(stale).at("boot_id"), boot_id);
  EXPECT_EQ(ErrorMetadataOf(stale).at("expected"), node().boot_id());
  EXPECT_TRUE(IsError(SwapInSlots(worker, "r", {70}, -1).status, Code::kFailedPrecondition,
                      "BOOT_ID_STALE"));
  for (const std::string& id : {std::string("nonsense"), node().boot_id() + ".0000"}) {
    EXPECT_TRUE(IsError(AttachStatus(id, layout), Code::kNotFound, "SESSION_UNKNOWN"));
  }
}

TEST_F(NodeSessionTest, D05_ARestartedWorkerDoesNotReadItsPredecessorsRows) {
  for (const int32_t row_bytes : {656, 656, 672}) {
    Worker worker = OpenAndAttach(SmallLayout{.row_bytes = row_bytes}.Make());
    const int32_t region = Admit(worker, "r");
    Assign(worker, "r", 2);
    SwapInSlots(worker, "r", {70}, -1);
    EXPECT_EQ(Total()[Counter::kUnbackedReads], 1);
    EXPECT_TRUE(worker.memory->HotRowIsZero(0, region * 128));
    EXPECT_EQ(worker.memory->HostRow(0, 0, 70)[9], 0) << "and the pool was wiped";
    ASSERT_TRUE(BackupPattern(worker, "r", region, 70, 0x11).ok());
    node().CloseSession(worker.session);
  }
}

TEST_F(NodeSessionTest, D06_TwoWorkersUseTheSameRequestId) {
  const CacheLayout layout = SmallLayout{}.Make();
  Worker one = OpenAndAttach(layout), two = OpenAndAttach(layout);
  Admit(one, "r1");
  Admit(two, "r1");
  const AssignResult first = Assign(one, "r1", 2), second = Assign(two, "r1", 2);
  EXPECT_TRUE(IsError(node().FreeBlocks(two.session, "kv", "r1", first.block_ids, Soon()).status(),
                      Code::kPermissionDenied, "BLOCK_FOREIGN"));
  EXPECT_EQ(node().ReleaseRequest(two.session, "kv", "r1", Soon()).value_or(-1), 2);
  WaitForQuarantine();
  EXPECT_EQ(Stats().blocks_used, 2);
  EXPECT_TRUE(SwapInSlots(one, "r1", {first.block_ids[0] * 64}, -1).status.ok());
  // Abort and resubmit in one step gives a new request.
  ASSERT_TRUE(node().ReleaseRequest(one.session, "kv", "r1", Soon()).ok());
  Admit(one, "r1", /*reserve=*/1);
  const auto requests = node().Requests("kv");
  ASSERT_TRUE(requests.ok());
  ASSERT_EQ(requests->size(), 1u);
  EXPECT_EQ(requests->at(0).blocks, 0);
  EXPECT_EQ(requests->at(0).reserved_blocks, 1);
  ASSERT_TRUE(node().ReleaseRequest(one.session, "kv", "r1", Soon()).ok());
  WaitForQuarantine();
  EXPECT_EQ(Stats().blocks_free, 32);
}

TEST_F(NodeSessionTest, AdmittingTwiceIsAdmittingOnce) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  const int32_t region = Admit(worker, "r", 3);
  EXPECT_EQ(Admit(worker, "r", 3), region);
  EXPECT_EQ(Stats().blocks_reserved, 3);
  EXPECT_TRUE(IsError(node().AdmitRequest(worker.session, "kv", "r", 4, Soon()).status(),
                      Code::kAlreadyExists, "ID_CONFLICT"));
}

TEST_F(NodeSessionTest, K25_AnotherHotSizeIsRefusedAndTheFirstGoesOn) {
  Worker worker = OpenAndAttach(SmallLayout{.top_k = 4, .hot_size = 4}.Make());
  const std::string other = Open();
  const absl::Status refused = AttachStatus(other, SmallLayout{.top_k = 4, .hot_size = 8}.Make());
  EXPECT_TRUE(IsError(refused, Code::kFailedPrecondition, "LAYOUT_MISMATCH"));
  EXPECT_EQ(ErrorMetadataOf(refused).at("cache"), "kv");
  Admit(worker, "r");
  EXPECT_TRUE(SwapInSlots(worker, "r", {1}, -1).status.ok());
  EXPECT_TRUE(AttachStatus(other, SmallLayout{.top_k = 4, .hot_size = 4}.Make()).ok());
}

TEST_F(NodeSessionTest, D24_FreeingThatHangsHoldsNobodyUp) {
  const CacheLayout layout = SmallLayout{}.Make();
  Worker one = OpenAndAttach(layout), two = OpenAndAttach(layout);
  Admit(two, "r");
  const auto delay = plan().DelayNth(DeviceOperation::kFree, 1);
  one.memory.reset();
  node().CloseSession(one.session);
  delay->WaitUntilReached();  // the reaper stands in the driver, and will for as long as we want
  EXPECT_TRUE(node().Snapshot("").ok());
  EXPECT_TRUE(SwapInSlots(two, "r", {1}, -1).status.ok());
  EXPECT_EQ(Assign(two, "r", 4).block_ids.size(), 4u);
  Worker three = OpenAndAttach(layout);
  Worker fresh = Attach(three.session, "another-cache", SmallLayout{.block_count = 4}.Make());
  EXPECT_TRUE(node().ReleaseRequest(two.session, "kv", "r", Soon()).ok());
  WaitForQuarantine();
  EXPECT_FALSE(node().CloseAllSessions("", absl::Now()).ok()) << "says that memory is out";
  delay->Release();
  two.memory.reset();
  three.memory.reset();
  fresh.memory.reset();
  ExpectBaseline();
}

TEST_F(NodeSessionTest, DrainAdmitsNothingNewAndLetsWorkGoOn) {
  const CacheLayout layout = SmallLayout{}.Make();
  const auto recorder = std::make_shared<Recorder>();
  const std::string session = *node().OpenSession("w", {.pid = 1, .uid = 1000}, recorder);
  Worker worker = Attach(session, "kv", layout);
  Admit(worker, "r");
  Assign(worker, "r", 1);
  const std::string idle = Open();
  node().Drain("new version");
  node().Drain("again");
  EXPECT_THAT(recorder->events(), ElementsAre("draining new version"));
  EXPECT_TRUE(
      IsError(node().OpenSession("x", {}, nullptr).status(), Code::kUnavailable, "DRAINING"));
  EXPECT_TRUE(IsError(AttachStatus(idle, layout), Code::kUnavailable, "DRAINING"));
  EXPECT_TRUE(IsError(node().AdmitRequest(session, "kv", "r2", 0, Soon()).status(),
                      Code::kUnavailable, "DRAINING"));
  EXPECT_TRUE(IsError(node().AssignBlocks(session, "kv", "r", 1, {}, {}, Soon()).status(),
                      Code::kUnavailable, "DRAINING"));
  // What is there can be had again, used and given back.
  EXPECT_TRUE(AttachStatus(session, layout).ok());
  EXPECT_EQ(Admit(worker, "r"), 0);
  EXPECT_TRUE(SwapInSlots(worker, "r", {1}, -1).status.ok());
  EXPECT_TRUE(node().FreeBlocks(session, "kv", "r", {0}, Soon()).ok());
  EXPECT_TRUE(node().Snapshot("")->draining);

  EXPECT_TRUE(node().EvictSession(session, "time is up").ok());
  EXPECT_THAT(recorder->events(), ElementsAre("draining new version", "revoked time is up"));
  EXPECT_TRUE(IsError(node().EvictSession(session, ""), Code::kNotFound, "SESSION_UNKNOWN"));
  worker.memory.reset();
  ExpectBaseline();
}

TEST_F(NodeSessionTest, TokensWorkOnceAndForTheirUserAlone) {
  const std::string session = Open("w", {.pid = 1, .uid = 1000});
  const auto attached = node().AttachCache(session, "kv", SmallLayout{}.Make(), "", Soon());
  ASSERT_TRUE(attached.ok());
  const std::string token = attached->segments[0].fd_token;
  EXPECT_EQ(token.size(), 32u);
  const auto redeem = [&](const std::string& t, int32_t uid) {
    return node().RedeemToken(t, {.pid = 5, .uid = uid}).status();
  };
  EXPECT_TRUE(IsError(redeem(token, 1001), Code::kNotFound, "SESSION_UNKNOWN"));
  EXPECT_TRUE(redeem(token, 1000).ok());
  EXPECT_TRUE(IsError(redeem(token, 1000), Code::kNotFound, "SESSION_UNKNOWN"));
  EXPECT_TRUE(IsError(redeem("", 1000), Code::kNotFound, "SESSION_UNKNOWN"));
  node().CloseSession(session);
  EXPECT_TRUE(
      IsError(redeem(attached->segments[1].fd_token, 1000), Code::kNotFound, "SESSION_UNKNOWN"));
  ExpectBaseline();
}

TEST_F(NodeSessionTest, AnUnknownUserIsBoundByItsFirstToken) {
  const std::string session = Open("over tcp", {});
  const auto attached = node().AttachCache(session, "kv", SmallLayout{}.Make(), "", Soon());
  ASSERT_TRUE(attached.ok());
  EXPECT_TRUE(node().RedeemToken(attached->segments[0].fd_token, {.pid = 5, .uid = 7}).ok());
  EXPECT_FALSE(node().RedeemToken(attached->segments[1].fd_token, {.pid = 5, .uid = 8}).ok());
  EXPECT_TRUE(node().RedeemToken(attached->segments[1].fd_token, {.pid = 5, .uid = 7}).ok());
}

TEST_F(NodeSessionTest, ListsWhoIsThere) {
  const CacheLayout layout = SmallLayout{}.Make();
  const std::string first = Open("b"), second = Open("a");
  Attach(second, "z", layout);
  Attach(second, "kv", layout);
  const std::vector<SessionSnapshot> sessions = node().Sessions();
  ASSERT_EQ(sessions.size(), 2u);
  EXPECT_EQ(sessions[0].session_id, first) << "oldest first";
  EXPECT_EQ(sessions[0].client_name, "b");
  EXPECT_EQ(sessions[0].peer.uid, 1000);
  EXPECT_THAT(sessions[1].caches, ElementsAre("kv", "z"));
  const auto snapshot = node().Snapshot("");
  ASSERT_TRUE(snapshot.ok());
  ASSERT_EQ(snapshot->caches.size(), 2u);
  EXPECT_EQ(snapshot->caches[0].cache, "kv");
  EXPECT_EQ(snapshot->caches[1].blocks_free, 32);
  EXPECT_EQ(snapshot->caches[1].largest_free_run_blocks, 32);
  EXPECT_EQ(snapshot->caches[1].host_bytes, HostGeometryOf(layout).size_bytes);
  EXPECT_EQ(snapshot->caches[1].sessions[0].client_name, "a");
  EXPECT_GT(snapshot->caches[1].sessions[0].device_bytes, 0);
  EXPECT_TRUE(IsError(node().Snapshot("none").status(), Code::kNotFound, "CACHE_UNKNOWN"));
  EXPECT_TRUE(IsError(node().Requests("none").status(), Code::kNotFound, "CACHE_UNKNOWN"));
}

}  // namespace
}  // namespace kvtier
