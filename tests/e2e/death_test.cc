// kill -9 of either side. Cases D01, D03 and D05.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "client/cache.h"
#include "client/error.h"
#include "client/request.h"
#include "client/steps.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "proto/kvtier/v1/kvtier.grpc.pb.h"
#include "tests/e2e/daemon.h"
#include "tests/e2e/fixture.h"

namespace kvtier::e2e {
namespace {

using ::testing::AnyOf;
using ::testing::HasSubstr;

std::ptrdiff_t DescriptorCount(pid_t pid) {
  const std::filesystem::directory_iterator fds("/proc/" + std::to_string(pid) + "/fd");
  return std::distance(begin(fds), end(fds));
}

TEST(Death, TheWorkerOutlivesTheDaemon) {
  Daemon daemon;
  client::SessionState told = client::SessionState::kOpen;
  absl::StatusOr<client::Session> session = daemon.Open(
      "survivor", {.on_event = [&told](const client::SessionEvent& event) { told = event.state; }});
  ASSERT_TRUE(session.ok()) << session.status();
  absl::StatusOr<client::Cache> cache = AttachTiny(*session);
  ASSERT_TRUE(cache.ok()) << cache.status();
  absl::StatusOr<client::Request> request = cache->Admit("r");
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_TRUE(request->AssignBlocks(2).ok());
  ASSERT_TRUE(BackupRows(&*cache, *request, 0, 8, 0x5a).ok());
  absl::StatusOr<client::Steps> steps = client::Steps::Open(*cache);
  ASSERT_TRUE(steps.ok()) << steps.status();
  SetStep(&*cache, *request, {0, 1});
  ASSERT_TRUE(cache->SwapIn(0, 1).ok());

  daemon.Kill();
  ASSERT_TRUE(session->WaitUntilEnded(kPatience));
  EXPECT_EQ(session->state(), client::SessionState::kLost);
  // Memory: still there, and a step gives the right bytes from it.
  SetStep(&*cache, *request, {1, 5, 7});
  ASSERT_TRUE(cache->SwapIn(0, 1).ok());
  for (int i = 0; i < 3; ++i) EXPECT_EQ(ValueAt(*cache, i), 0x5a);
  EXPECT_EQ(cache->counts(0)[Counter::kHits], 1);
  // Calls: an error at once.
  const absl::Time start = absl::Now();
  EXPECT_EQ(cache->SwapInRpc(0, 1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(request->AssignBlocks(1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(steps->SwapIn(0, 1).status().code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(cache->BackupNewest(1).code(), absl::StatusCode::kUnavailable);
  EXPECT_LT(absl::Now() - start, absl::Seconds(5));
  session = absl::CancelledError();  // waits for the callback
  EXPECT_EQ(told, client::SessionState::kLost);
}

TEST(Death, AWorkerAttachesAgainAfterARestart) {
  Daemon daemon;
  absl::StatusOr<client::Session> session = daemon.Open("first");
  ASSERT_TRUE(session.ok()) << session.status();
  absl::StatusOr<client::Cache> cache = AttachTiny(*session);
  ASSERT_TRUE(cache.ok()) << cache.status();
  absl::StatusOr<client::Request> request = cache->Admit("r");
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_TRUE(request->AssignBlocks(1).ok());
  ASSERT_TRUE(BackupRows(&*cache, *request, 0, 4, 0x11).ok());
  SetStep(&*cache, *request, {0, 1});
  ASSERT_TRUE(cache->SwapIn(0, 1).ok());
  const std::string old_id = session->id();

  daemon.Kill();
  daemon.Start();
  absl::StatusOr<client::Session> next = daemon.Open("second");
  ASSERT_TRUE(next.ok()) << next.status();
  EXPECT_NE(next->boot_id(), old_id.substr(0, next->boot_id().size()));
  absl::StatusOr<client::Cache> again = AttachTiny(*next);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_TRUE(again->created());
  absl::StatusOr<client::Request> fresh = again->Admit("r");
  ASSERT_TRUE(fresh.ok()) << fresh.status();
  ASSERT_TRUE(fresh->AssignBlocks(1).ok());
  SetStep(&*again, *fresh, {0, 1});
  ASSERT_TRUE(again->SwapIn(0, 1).ok());
  EXPECT_EQ(ValueAt(*again, 0), 0) << "never the row of the daemon before";
  EXPECT_EQ(again->counts(0)[Counter::kHits], 0);
  EXPECT_EQ(again->counts(0)[Counter::kUnbackedReads], 2);

  // D05: a call under the old session's id is told apart.
  const auto stub = v1::KvTier::NewStub(
      grpc::CreateChannel("unix:" + daemon.socket_path(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  v1::AdmitRequestRequest message;
  message.set_session_id(old_id);
  message.set_cache("tiny");
  message.set_request_id("r2");
  v1::AdmitRequestResponse response;
  const grpc::Status status = stub->AdmitRequest(&context, message, &response);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::FAILED_PRECONDITION);
  EXPECT_THAT(status.error_details(), HasSubstr("BOOT_ID_STALE"));
}

// Starts a worker process (victim_main.cc); it holds its blocks when this returns.
pid_t StartWorker(const Daemon& daemon) {
  int ends[2];
  EXPECT_EQ(pipe(ends), 0);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    execl("tests/e2e/victim", "victim", daemon.socket_path().c_str(), nullptr);
    _exit(127);
  }
  close(ends[1]);
  char byte = 0;
  EXPECT_EQ(read(ends[0], &byte, 1), 1) << "the worker failed";
  close(ends[0]);
  return pid;
}

void KillWorker(pid_t pid) {
  kill(pid, SIGKILL);
  int status = 0;
  EXPECT_EQ(waitpid(pid, &status, 0), pid);
}

bool Idle(const v1::GetStatsResponse& stats) {
  return stats.sessions() == 0 && stats.caches_size() == 0 && stats.pool().used_bytes() == 0;
}

// D01: everything a killed worker held comes back, again and again.
TEST(Death, AKilledWorkerLeavesNothingBehind) {
  Daemon daemon;
  std::vector<pid_t> workers;
  for (int i = 0; i < 4; ++i) workers.push_back(StartWorker(daemon));
  v1::GetStatsResponse stats = daemon.Stats();
  EXPECT_EQ(stats.sessions(), 4);
  ASSERT_EQ(stats.caches_size(), 1);
  EXPECT_EQ(stats.caches(0).sessions_size(), 4);
  // Block counts are of the cache, which all of them share.
  std::ptrdiff_t descriptors = DescriptorCount(daemon.pid());
  for (size_t i = 0; i < workers.size(); ++i) {
    const auto left = static_cast<int>(workers.size() - i - 1);
    KillWorker(workers[i]);
    // The last descriptors go with the attachment, a moment after the session is off the list.
    EXPECT_TRUE(daemon.WaitForStats([&](const v1::GetStatsResponse& now) {
      return now.sessions() == left && (left > 0 || Idle(now)) &&
             (left == 0 || now.caches(0).sessions_size() == left) &&
             DescriptorCount(daemon.pid()) < descriptors;
    })) << "worker "
        << i;
    descriptors = DescriptorCount(daemon.pid());
  }
}

TEST(Death, BlocksOfAKilledWorkerComeBack) {
  Daemon daemon;
  const pid_t victim = StartWorker(daemon);
  absl::StatusOr<client::Session> session = daemon.Open("witness");
  ASSERT_TRUE(session.ok()) << session.status();
  absl::StatusOr<client::Cache> cache = AttachTiny(*session, /*block_count=*/32);
  ASSERT_TRUE(cache.ok()) << cache.status();
  absl::StatusOr<client::Request> request = cache->Admit("mine");
  ASSERT_TRUE(request.ok()) << request.status();
  ASSERT_TRUE(request->AssignBlocks(2).ok());
  ASSERT_TRUE(BackupRows(&*cache, *request, 0, 8, 7).ok());
  const v1::CacheStats before = daemon.Stats().caches(0);
  EXPECT_EQ(before.blocks_used(), 5);
  EXPECT_EQ(before.blocks_reserved(), 2);
  KillWorker(victim);
  EXPECT_TRUE(daemon.WaitForStats([](const v1::GetStatsResponse& stats) {
    const v1::CacheStats& cache = stats.caches(0);
    return cache.sessions_size() == 1 && cache.blocks_used() == 2 && cache.blocks_free() == 30 &&
           cache.blocks_reserved() == 0 && cache.blocks_quarantined() == 0;
  }));
  SetStep(&*cache, *request, {0, 7});
  ASSERT_TRUE(cache->SwapIn(0, 1).ok());
  EXPECT_EQ(ValueAt(*cache, 1), 7);
  EXPECT_TRUE(request->AssignBlocks(30).ok()) << "all that is left";
}

TEST(Death, SigtermEndsSessionsAndIsNoCrash) {
  Daemon daemon;
  absl::StatusOr<client::Session> session = daemon.Open("worker");
  ASSERT_TRUE(session.ok()) << session.status();
  absl::StatusOr<client::Cache> cache = AttachTiny(*session);
  ASSERT_TRUE(cache.ok()) << cache.status();
  EXPECT_EQ(daemon.Stop(), 0);
  ASSERT_TRUE(session->WaitUntilEnded(kPatience));
  EXPECT_THAT(session->state(), AnyOf(client::SessionState::kRevoked, client::SessionState::kLost));
}

}  // namespace
}  // namespace kvtier::e2e
