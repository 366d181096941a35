// Every call of the operating system that the client library makes fails once, in the life of a
// worker of a real daemon: opening a session, attaching a cache (with all that it is given), steps
// in both planes, and attaching again after the daemon was killed. What failed says what this
// process lacks, nothing stays on either side, and the next attempt works.

#include <errno.h>
#include <fcntl.h>
#include <sys/resource.h>

#include <functional>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "client/cache.h"
#include "client/error.h"
#include "client/request.h"
#include "client/session.h"
#include "client/steps.h"
#include "gtest/gtest.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/fixture.h"
#include "tests/faults/baseline.h"
#include "tests/faults/system_calls.h"

namespace kvtier::faults {
namespace {

constexpr int64_t kAttemptsMax = 1000;

::testing::AssertionResult IsShortage(const absl::Status& status) {
  if (absl::IsResourceExhausted(status) && client::ErrorReasonOf(status) == "LIMIT_REACHED") {
    return ::testing::AssertionSuccess();
  }
  return ::testing::AssertionFailure() << status << " [" << client::ErrorReasonOf(status) << "]";
}

// The limit under which `spare` numbers are free for new descriptors.
rlim_t LimitThatLeaves(rlim_t spare) {
  rlim_t number = 0;
  for (;; ++number) {
    const bool is_free = fcntl(static_cast<int>(number), F_GETFD) < 0;
    if (is_free && spare-- == 0) return number;
  }
}

class ClientFaultTest : public ::testing::Test {
 protected:
  ClientFaultTest() { EXPECT_TRUE(daemon_.WaitUntilReady()); }

  // A worker's life, in the order of its steps; the first error ends it.
  absl::Status Live() {
    absl::StatusOr<client::Session> session = daemon_.Open("worker");
    if (!session.ok()) return session.status();
    absl::StatusOr<client::Cache> cache = e2e::AttachTiny(*session);
    if (!cache.ok()) return cache.status();
    absl::StatusOr<client::Request> request = cache->Admit("r");
    if (!request.ok()) return request.status();
    if (auto assigned = request->AssignBlocks(1); !assigned.ok()) return assigned.status();
    // What works from here on must give the right rows.
    EXPECT_TRUE(e2e::BackupRows(&*cache, *request, 0, 4, 0x5a).ok());
    e2e::SetStep(&*cache, *request, {0, 1});
    EXPECT_TRUE(cache->SwapIn(0, 1).ok());
    EXPECT_EQ(e2e::ValueAt(*cache, 1), 0x5a);
    absl::StatusOr<client::Steps> steps = client::Steps::Open(*cache);
    if (!steps.ok()) return steps.status();
    e2e::SetStep(&*cache, *request, {2, 3});
    EXPECT_TRUE(steps->SwapIn(0, 1, {}, /*wait=*/true).ok());
    EXPECT_TRUE(steps->Next().ok());
    EXPECT_EQ(e2e::ValueAt(*cache, 1), 0x5a);
    return absl::OkStatus();
  }

  // The daemon has nothing of this worker any more. What a session leaves comes back soon.
  void ExpectNothingLeft() {
    EXPECT_TRUE(daemon_.WaitForStats([](const v1::GetStatsResponse& stats) {
      return stats.sessions() == 0 && stats.caches_size() == 0 && stats.pool().used_bytes() == 0;
    }));
  }
  // gRPC closes what a session had on threads of its own.
  void ExpectBaseline(const Baseline& before) {
    const absl::Time end = absl::Now() + e2e::kPatience;
    std::string difference;
    do {
      Baseline now = Baseline::Now();
      now.threads = before.threads;  // gRPC's own, which come and go
      difference = Difference(before, now);
      if (!difference.empty()) std::this_thread::yield();
    } while (!difference.empty() && absl::Now() < end);
    EXPECT_EQ(difference, "");
  }

  e2e::Daemon daemon_;
};

TEST_F(ClientFaultTest, EverySystemCallFailsOnce) {
  ASSERT_TRUE(Live().ok());
  ExpectNothingLeft();
  const Baseline before = Baseline::Now();
  int64_t refused = 0;
  const int64_t failed =
      FailEachSystemCall(AllSystemCalls(), kAttemptsMax, [&](SystemCallFault& fault) {
        const absl::Status status = Live();
        fault.Cancel();
        SCOPED_TRACE(fault.ToString());
        // A daemon that cannot accept fast enough is asked again.
        const bool tolerated = fault.hit() == SystemCall::kConnect || !fault.hit().has_value();
        if (tolerated) {
          EXPECT_TRUE(status.ok()) << status;
        } else {
          ++refused;
          EXPECT_TRUE(IsShortage(status));
        }
        ExpectNothingLeft();
        ExpectBaseline(before);
      });
  EXPECT_GT(failed, 40);
  EXPECT_GT(refused, 30);
  RecordProperty("faults", static_cast<int>(failed));
}

// Signals of the engine come at any moment, and its handlers may not restart calls.
TEST_F(ClientFaultTest, SignalsInterruptNothing) {
  const std::vector<SystemCall> interruptible = {SystemCall::kConnect, SystemCall::kSend,
                                                 SystemCall::kPoll, SystemCall::kRecvmsg};
  const int64_t failed = FailEachSystemCall(
      interruptible, kAttemptsMax,
      [&](SystemCallFault& fault) {
        const absl::Status status = Live();
        EXPECT_TRUE(status.ok()) << status << " after " << fault.ToString();
      },
      EINTR);
  EXPECT_GT(failed, 20);
  RecordProperty("faults", static_cast<int>(failed));
}

// A process with no descriptor left: the kernel delivers the answer without the descriptor in it.
TEST_F(ClientFaultTest, NoDescriptorLeft) {
  absl::StatusOr<client::Session> session = daemon_.Open("worker");
  ASSERT_TRUE(session.ok()) << session.status();
  rlimit limit = {};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlim_t before = limit.rlim_cur;
  int failed = 0;
  for (rlim_t spare = 0;; ++spare) {
    limit.rlim_cur = LimitThatLeaves(spare);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    absl::StatusOr<client::Cache> cache = e2e::AttachTiny(*session);
    limit.rlim_cur = before;
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
    if (cache.ok()) break;
    ++failed;
    EXPECT_TRUE(IsShortage(cache.status())) << spare << " descriptors";
    ASSERT_LT(spare, 20u);
  }
  EXPECT_GE(failed, 2) << "the socket, and what comes through it";
}

// The daemon is killed and started again; each attempt to attach again fails once.
TEST_F(ClientFaultTest, AttachingAgainAfterARestart) {
  ASSERT_TRUE(Live().ok());
  int64_t number = 1;
  for (bool done = false; !done; number += 9) {
    absl::StatusOr<client::Session> session = daemon_.Open("old");
    ASSERT_TRUE(session.ok()) << session.status();
    absl::StatusOr<client::Cache> cache = e2e::AttachTiny(*session);
    ASSERT_TRUE(cache.ok()) << cache.status();
    daemon_.Kill();
    ASSERT_TRUE(session->WaitUntilEnded(e2e::kPatience));
    daemon_.Start();
    ASSERT_TRUE(daemon_.WaitUntilReady());
    SystemCallFault fault(AllSystemCalls(), number);
    const absl::Status status = Live();
    fault.Cancel();
    SCOPED_TRACE(fault.ToString());
    done = !fault.hit().has_value();
    if (done || fault.hit() == SystemCall::kConnect) {
      EXPECT_TRUE(status.ok()) << status;
    } else {
      EXPECT_TRUE(IsShortage(status));
    }
    const absl::Status again = Live();
    EXPECT_TRUE(again.ok()) << again;
  }
  EXPECT_GT(number, 40);
}

}  // namespace
}  // namespace kvtier::faults
