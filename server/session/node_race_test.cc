// Many threads, random verbs, sessions that are killed: nothing is lost, doubled or leaked.

#include <algorithm>
#include <array>
#include <atomic>
#include <random>
#include <set>
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

constexpr int kThreads = 8;
constexpr int kSessions = 4;
constexpr int kRequests = 3;
constexpr int kVerbsPerThread = 6000;
constexpr int32_t kBlocks = 24;

class NodeRaceTest : public NodeFixture {
 protected:
  struct Session {
    std::string id;
    int64_t number = 0;  // from 0, in the order in which they were opened
  };
  Session SessionAt(int index) {
    MutexLock lock(&mutex_);
    return sessions_[index];
  }
  void OpenAll() {
    MutexLock lock(&mutex_);
    for (Session& session : sessions_) session = {Open(), session_count_++};
  }
  // Ends the session at `index`, one way or the other, and opens another one in its place.
  void Replace(int index, bool evict) {
    const auto fresh = node().OpenSession("worker", {.pid = 1, .uid = 1000}, nullptr);
    ASSERT_TRUE(fresh.ok()) << fresh.status();
    std::string old;
    {
      MutexLock lock(&mutex_);
      old = std::exchange(sessions_[index], {*fresh, session_count_++}).id;
    }
    if (evict) {
      node().EvictSession(old, "race").IgnoreError();
    } else {
      node().CloseSession(old);
    }
  }

  // What a verb may answer while others change everything around it.
  static bool IsExpected(const absl::Status& status) {
    static constexpr std::array<const char*, 13> kReasons = {
        "SESSION_UNKNOWN",  "SESSION_CLOSED",    "CACHE_UNKNOWN",  "REQUEST_UNKNOWN",
        "BLOCKS_EXHAUSTED", "REGIONS_EXHAUSTED", "ID_CONFLICT",    "BLOCK_NOT_ASSIGNED",
        "BLOCK_FOREIGN",    "POOL_EXHAUSTED",    "TICKET_UNKNOWN", "LIMIT_REACHED",
        "FIELD_INVALID"};
    return status.ok() ||
           std::find(kReasons.begin(), kReasons.end(), ErrorReasonOf(status)) != kReasons.end();
  }

  // A slot that no other session writes, as device streams are not ordered among each other and
  // nobody else orders them here, and that nothing reads: swap-ins read the first eight positions
  // of blocks. Sessions of so many ago are gone.
  static int32_t SlotOf(int64_t session_number, uint32_t which) {
    constexpr int32_t kRead = 8, kWritten = 64 - kRead, kSlotsOfASession = 2;
    constexpr int32_t kShares = kBlocks * kWritten / kSlotsOfASession;
    const auto place = static_cast<int32_t>(session_number % kShares * kSlotsOfASession +
                                            which % kSlotsOfASession);
    return place / kWritten * 64 + kRead + place % kWritten;
  }

  absl::Status DataVerb(std::mt19937& random, const Session& from, const std::string& request) {
    const std::string& session = from.id;
    const auto done = [this](const OperationOutcome&) { ++callbacks_; };
    absl::StatusOr<int64_t> ticket;
    switch (random() % 4) {
      case 0: {
        SwapInCall call;
        call.cache = "kv";
        call.inline_rows = {{.request_id = request, .topk = {0, 1, 70, 3}}};
        ticket = node().SwapIn(session, call, done);
        break;
      }
      case 1: {
        SwapInCall call;
        call.cache = "kv";
        call.step_rows = 2;
        ticket = node().SwapIn(session, call, done);
        break;
      }
      case 2: {
        BackupCall call;
        call.cache = "kv";
        call.inline_rows = {{.request_id = request, .slot = SlotOf(from.number, random())}};
        ticket = node().Backup(session, call, done);
        break;
      }
      default: {
        const absl::Status status =
            node().OnTicket(session, "kv", 1 + static_cast<int64_t>(random() % 50), done);
        tickets_ += status.ok();
        return status;
      }
    }
    tickets_ += ticket.ok();
    return ticket.status();
  }

  // Every other time without patience first, as gRPC's threads do.
  absl::Status ControlVerb(std::mt19937& random, const std::string& session,
                           const std::string& request) {
    std::mt19937 before = random;
    bool gave_up = false;
    if (before() % 2 == 0) {
      const absl::Status status =
          ControlVerb(random, session, request, Patience::None(Soon(), &gave_up));
      ended_at_once_ += !gave_up && status.ok();
      if (!gave_up) return status;
      random = before;
    }
    return ControlVerb(random, session, request, Soon());
  }

  absl::Status ControlVerb(std::mt19937& random, const std::string& session,
                           const std::string& request, const Patience& patience) {
    const auto some = [&random] { return static_cast<int32_t>(random() % kBlocks); };
    switch (random() % 12) {
      case 0:
        return node().AttachCache(session, "kv", layout_, "", Soon()).status();
      case 1:
        return random() % 8 == 0 ? node().DetachCache(session, "kv", Soon()).status()
                                 : absl::OkStatus();
      case 2:
      case 3:
        return node()
            .AdmitRequest(session, "kv", request, static_cast<int32_t>(random() % 3), patience)
            .status();
      case 4:
        return node().ReleaseRequest(session, "kv", request, patience).status();
      case 5:
        return node().FreeBlocks(session, "kv", request, {some()}, patience).status();
      case 6:
        return node().InvalidateBlocks(session, "kv", {some()}, patience).status();
      case 7:
        return node().AssignBlocks(session, "kv", request, 0, {some()}, {}, patience).status();
      default: {
        const auto assigned = node().AssignBlocks(
            session, "kv", request, 1 + static_cast<int32_t>(random() % 3), {}, {}, patience);
        return assigned.status();
      }
    }
  }

  void Observe() {
    const auto snapshot = node().Snapshot("");
    ASSERT_TRUE(snapshot.ok());
    for (const CacheSnapshot& cache : snapshot->caches) {
      EXPECT_EQ(
          cache.blocks_used + cache.blocks_free + cache.blocks_reserved + cache.blocks_quarantined,
          kBlocks);
      EXPECT_GE(cache.blocks_free, 0);
    }
    const int64_t steps = snapshot->total[Counter::kSteps];
    int64_t seen = steps_seen_.load();
    // Only who looked at the counter before the snapshot may compare with it.
    while (steps > seen && !steps_seen_.compare_exchange_weak(seen, steps)) {
    }
    for (const SessionSnapshot& session : node().Sessions())
      EXPECT_FALSE(session.session_id.empty());
    node().Requests("kv").status().IgnoreError();
    EXPECT_GE(node().DeviceBytesUsed("CPU-0"), 0);
  }

  void Run(uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < kVerbsPerThread; ++i) {
      const int index = static_cast<int>(random() % kSessions);
      const Session session = SessionAt(index);
      const std::string request = "r" + std::to_string(random() % kRequests);
      const uint32_t choice = random() % 100;
      absl::Status status;
      if (choice < 1) {
        Replace(index, random() % 2 == 0);
      } else if (choice < 6) {
        const int64_t before = steps_seen_.load();
        Observe();
        const auto again = node().Snapshot("");
        ASSERT_TRUE(again.ok());
        EXPECT_GE(again->total[Counter::kSteps], before) << "a total went down";
      } else if (choice < 50) {
        status = DataVerb(random, session, request);
      } else {
        status = ControlVerb(random, session.id, request);
      }
      ASSERT_TRUE(IsExpected(status)) << status;
      verbs_ok_ += status.ok();
    }
  }

  const CacheLayout layout_ = SmallLayout{.top_k = 4,
                                          .hot_size = 8,
                                          .block_count = kBlocks,
                                          .max_requests = 2,
                                          .row_bytes = 64,
                                          .groups = 2}
                                  .Make();
  Mutex mutex_;
  std::array<Session, kSessions> sessions_ KVTIER_GUARDED_BY(mutex_);
  int64_t session_count_ KVTIER_GUARDED_BY(mutex_) = 0;
  std::atomic<int64_t> tickets_ = 0, callbacks_ = 0, verbs_ok_ = 0, steps_seen_ = 0,
                       ended_at_once_ = 0;
};

TEST_F(NodeRaceTest, D24_RandomVerbsOnDyingSessions) {
  OpenAll();
  std::vector<std::thread> threads;
  for (uint32_t i = 0; i < kThreads; ++i) threads.emplace_back([this, i] { Run(100 + i); });
  for (std::thread& thread : threads) thread.join();
  ExpectBaseline();
  EXPECT_EQ(callbacks_, tickets_) << "a callback was lost or came twice";
  EXPECT_GT(verbs_ok_, kThreads * kVerbsPerThread / 4) << "too little happened";
  EXPECT_GT(ended_at_once_, 0);
}

// Everybody joins and leaves one cache at once: it is made and ended many times.
TEST_F(NodeRaceTest, D28_CachesMadeAndEndedByMany) {
  std::atomic<int> made = 0;
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 40; ++round) {
        const std::string session = Open();
        const auto attached = node().AttachCache(session, "kv", layout_, "", Soon());
        EXPECT_TRUE(attached.ok()) << attached.status();
        made += attached.ok() && attached->created;
        if (round % 2 == 0) {
          EXPECT_TRUE(node().DetachCache(session, "kv", Soon()).ok());
        }
        node().CloseSession(session);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_GT(made, 0);
  ExpectBaseline();
}

// Creators fail one after another; those who waited for them try themselves.
TEST_F(NodeRaceTest, D28_JoinersSurviveACreatorThatFails) {
  std::vector<std::string> sessions;
  for (int i = 0; i < kThreads; ++i) sessions.push_back(Open());
  for (int round = 0; round < 10; ++round) {
    plan().FailNth(DeviceOperation::kRegisterHost, 1, absl::InternalError("first"));
    plan().FailNth(DeviceOperation::kRegisterHost, 4, absl::InternalError("second"));
    plan().FailNth(DeviceOperation::kAllocate, 5, absl::InternalError("third"));
    std::atomic<int> ok = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < kThreads; ++i) {
      threads.emplace_back([&, i] {
        const auto attached = node().AttachCache(sessions[i], "kv", layout_, "", Soon());
        ok += attached.ok();
        EXPECT_TRUE(attached.ok() || absl::IsInternal(attached.status()));
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_GE(ok, kThreads - 3);
    plan().Clear();
    for (const std::string& session : sessions) {
      node().DetachCache(session, "kv", Soon()).status().IgnoreError();
    }
  }
  ExpectBaseline();
}

// On what says that it is a GPU, where a device stream may wait for a worker's number. What is
// tried again, or left by a session, waits for RunReaper.
class NodeGpuRaceTest : public NodeFixture {
 protected:
  NodeGpuRaceTest()
      : NodeFixture({.claims_cuda = true, .node = {.version = "test", .reaper_threads = 0}}) {}
};

// A worker dies while its first verb that waits for it is half enqueued: the wait comes after the
// fence, and nobody will write the number.
TEST_F(NodeGpuRaceTest, AWaitThatIsEnqueuedAfterTheFenceIsReleased) {
  Worker worker = OpenAndAttach(SmallLayout{}.Make());
  Admit(worker, "r");
  const AssignResult assigned = Assign(worker, "r", 1);
  auto* const word = reinterpret_cast<int32_t*>(
      const_cast<uint8_t*>(worker.memory->segment(SegmentKind::kProgress)));
  // A change of the block table that the device refused twice goes with the next verb, before its
  // wait.
  plan().FailNthCallHere(1, absl::InternalError("refused"), 2);
  EXPECT_FALSE(node().FreeBlocks(worker.session, "kv", "r", assigned.block_ids, Soon()).ok());
  bool closed = false;
  plan().BeforeNth(DeviceOperation::kWrite, 1, [&] {
    closed = true;
    node().CloseSession(worker.session);
  });
  const int64_t waits = plan().calls(DeviceOperation::kWaitWord);
  (void)node().SwapIn(worker.session,
                      {.cache = "kv", .group = 0, .step_rows = 1, .after_worker = 5}, nullptr);
  EXPECT_TRUE(closed);
  EXPECT_EQ(plan().calls(DeviceOperation::kWaitWord), waits + 1);
  // Released, the stream runs dry, and all memory is back.
  const absl::Time deadline = absl::Now() + absl::Seconds(30);  // only a failure waits so long
  while (pool().stats().used_bytes > 0 && absl::Now() < deadline) {
    if (!node().RunReaper()) std::this_thread::yield();
  }
  const std::atomic_ref<int32_t> number(*word);
  EXPECT_EQ(number.load(), 5);
  number.store(5);
  worker.memory.reset();
  ExpectBaseline();
}

}  // namespace
}  // namespace kvtier
