// kill -9 of the daemon in every phase, with its pool kept and its workers alive.
//
// After each death the worker that runs its own steps goes on with right rows, the one that has the
// daemon run them is told, and both attach to the next daemon by the cache's name: every row that
// was backed up is there again, and no other. All of that while the workers of before still map the
// pool and step on it.
//
// Built twice, as worker_death_test.cc. Prints how long starts and attachments take.
#include <sched.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/e2e/daemon.h"
#include "tests/gpu/huge_pages.h"
#include "tests/gpu/reader.h"
#include "tests/gpu/victim.h"

namespace kvtier::testing {
namespace {

using e2e::kPatience;

struct Workers {
  std::unique_ptr<Reader> in_process, rpc;
};

// By a daemon that had time to say so before it died: then the library refuses steps.
bool WasEnded(Reader& reader) { return reader.session().state() == client::SessionState::kRevoked; }

class DaemonDeath : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyNoDevice();
    if (!why.empty()) GTEST_SKIP() << why;
    alarm(240);  // a test that hangs ends here
    char name[] = "/dev/shm/kvtier-death-XXXXXX";
    folder_ = mkdtemp(name);
  }
  ~DaemonDeath() override {
    daemon_.reset();
    std::error_code ignored;
    std::filesystem::remove_all(folder_, ignored);
  }

  void StartDaemon(const std::string& pool_path, int64_t pool_bytes) {
    pool_path_ = pool_path;
    daemon_ = std::make_unique<e2e::Daemon>(e2e::DaemonOptions{
        .pool_bytes = pool_bytes, .backend = kBackendName, .flags = {"--pool_path=" + pool_path}});
  }

  // Time from exec until the daemon takes connections.
  absl::Duration WaitUntilListening() const {
    const absl::Time start = absl::Now();
    struct stat status = {};
    while (stat(daemon_->socket_path().c_str(), &status) != 0 && absl::Now() - start < kPatience) {
      sched_yield();
    }
    return absl::Now() - start;
  }

  std::unique_ptr<Reader> Attach(demo::Plane plane, bool adopt) {
    const bool in_process = plane == demo::Plane::kInProcess;
    auto reader = Reader::Start({.socket_path = daemon_->socket_path(),
                                 .plane = plane,
                                 .salt = in_process ? 1 : 2,
                                 .adopt = adopt});
    EXPECT_TRUE(reader.ok()) << reader.status();
    return reader.ok() ? *std::move(reader) : nullptr;
  }
  Workers AttachBoth(bool adopt) {
    Workers workers = {Attach(demo::Plane::kInProcess, adopt), Attach(demo::Plane::kRpc, adopt)};
    return workers;
  }

  // The workers step and append, the daemon is killed by `kill`, the next one takes over.
  void Die(const std::string& phase, Workers* workers, const std::function<void()>& kill);
  void ExpectTakenOver(const std::string& phase, Workers* before, Reading* still_reading);

  std::string folder_, pool_path_;
  std::unique_ptr<e2e::Daemon> daemon_;
};

void DaemonDeath::Die(const std::string& phase, Workers* workers,
                      const std::function<void()>& kill) {
  SCOPED_TRACE(phase);
  Reading in_process(workers->in_process.get(), /*append=*/true);
  Reading rpc(workers->rpc.get(), /*append=*/true);
  ASSERT_TRUE(in_process.WaitForSteps(30, kPatience));
  ASSERT_TRUE(rpc.WaitForSteps(30, kPatience));
  kill();
  const absl::Time killed = absl::Now();
  daemon_->Kill();
  for (Reading* reading : {&in_process, &rpc}) {
    EXPECT_TRUE(reading->WaitUntilEnded(kPatience)) << "a call that does not end";
    const absl::Status status = reading->Stop();
    EXPECT_TRUE(absl::IsUnavailable(status) || absl::IsNotFound(status)) << status;
    EXPECT_EQ(reading->wrong_rows(), 0);
  }
  const absl::Duration told = absl::Now() - killed;
  EXPECT_LT(told, absl::Seconds(20)) << "the calls' deadline";
  // Memory: still there, and a step gives the right bytes from it, on and on.
  Reading still_reading(workers->in_process.get(), /*append=*/false);
  EXPECT_TRUE(still_reading.WaitForSteps(20, kPatience) || WasEnded(*workers->in_process))
      << still_reading.Stop();

  const absl::Time start = absl::Now();
  daemon_->Start();
  ASSERT_TRUE(daemon_->WaitUntilReady());
  const absl::Duration ready = absl::Now() - start;
  ExpectTakenOver(phase, workers, &still_reading);
  std::printf(
      "killed while %-22s workers told %5.0f ms, ready again %5.0f ms, taken over %5.0f ms\n",
      (phase + ":").c_str(), absl::ToDoubleMilliseconds(told), absl::ToDoubleMilliseconds(ready),
      absl::ToDoubleMilliseconds(absl::Now() - start - ready));
}

void DaemonDeath::ExpectTakenOver(const std::string& phase, Workers* before,
                                  Reading* still_reading) {
  Workers next = AttachBoth(/*adopt=*/true);
  ASSERT_NE(next.in_process, nullptr) << phase;
  ASSERT_NE(next.rpc, nullptr) << phase;
  for (auto [now, then] : {std::pair(next.in_process.get(), before->in_process.get()),
                           std::pair(next.rpc.get(), before->rpc.get())}) {
    EXPECT_FALSE(now->cache().created());
    EXPECT_EQ(now->AllWrongRows().value_or(-1), 0);
    EXPECT_EQ(now->WrongAppendedRows().value_or(-1), 0);
    EXPECT_GE(now->appended(), then->appended()) << "a completed backup is lost";
    const absl::StatusOr<bool> empty = now->FreshBlockIsEmpty();
    EXPECT_TRUE(empty.value_or(false)) << "rows of somebody else: " << empty.status();
  }
  const bool was_ended = WasEnded(*before->in_process);
  EXPECT_TRUE(still_reading->WaitForSteps(20, kPatience) || was_ended) << still_reading->Stop();
  EXPECT_TRUE(still_reading->Stop().ok() || was_ended) << still_reading->Stop();
  EXPECT_EQ(still_reading->wrong_rows(), 0);
  for (const auto& entry : std::filesystem::directory_iterator(pool_path_)) {
    EXPECT_FALSE(absl::EndsWith(entry.path().string(), ".new")) << entry.path();
  }
  *before = std::move(next);
}

TEST_F(DaemonDeath, D03_InEveryPhase) {
  StartDaemon(folder_ + "/pool", int64_t{1} << 30);
  ASSERT_TRUE(daemon_->WaitUntilReady());
  Workers workers = AttachBoth(/*adopt=*/false);
  ASSERT_TRUE(workers.in_process != nullptr && workers.rpc != nullptr);
  Die("both planes step", &workers, [] {});
  for (const char* phase : {"attach", "caches"}) {
    // "caches": manifests are written all the time.
    for (int calls : {1, 4}) {
      std::optional<Victim> victim;
      Die(absl::StrCat(phase, " is called, ", calls), &workers, [&] {
        victim.emplace(daemon_->socket_path(), phase);
        EXPECT_TRUE(victim->WaitForCalls(calls));
      });
      if (HasFatalFailure()) return;
    }
  }
  Die("it drains", &workers, [&] {
    grpc::ClientContext context;
    context.set_deadline(absl::ToChronoTime(absl::Now() + kPatience));
    v1::DrainResponse drained;
    EXPECT_TRUE(daemon_->admin().Drain(&context, v1::DrainRequest(), &drained).ok());
  });
  Die("it stops", &workers, [&] { kill(daemon_->pid(), SIGTERM); });
}

TEST_F(DaemonDeath, D03_WhileItStarts) {
  StartDaemon(folder_ + "/pool", int64_t{1} << 30);
  ASSERT_TRUE(daemon_->WaitUntilReady());
  Workers workers = AttachBoth(/*adopt=*/false);
  ASSERT_TRUE(workers.in_process != nullptr && workers.rpc != nullptr);
  // How long a start takes that is not disturbed.
  daemon_->Kill();
  std::filesystem::remove(daemon_->socket_path());
  daemon_->Start();
  const absl::Duration listening = WaitUntilListening();
  std::printf("exec to listening: %.0f ms\n", absl::ToDoubleMilliseconds(listening));
  constexpr int kTries = 8;
  for (int i = 0; i <= kTries; ++i) {
    daemon_->Kill();
    std::filesystem::remove(daemon_->socket_path());
    daemon_->Start();
    // From before it has read its command line to where it pins what it took over.
    const absl::Time end = absl::Now() + listening * i / (kTries - 1);
    while (absl::Now() < end) sched_yield();
  }
  daemon_->Kill();
  daemon_->Start();
  ASSERT_TRUE(daemon_->WaitUntilReady());
  Reading still_reading(workers.in_process.get(), /*append=*/false);
  ExpectTakenOver("starts", &workers, &still_reading);
}

// A clean stop and an upgrade: what requests held is kept as well.
TEST_F(DaemonDeath, AStopKeepsWhatAKillKeeps) {
  StartDaemon(folder_ + "/pool", int64_t{1} << 30);
  ASSERT_TRUE(daemon_->WaitUntilReady());
  Workers workers = AttachBoth(/*adopt=*/false);
  ASSERT_TRUE(workers.in_process != nullptr && workers.rpc != nullptr);
  for (int run = 0; run < 2; ++run) {
    EXPECT_EQ(daemon_->Stop(), 0);
    ASSERT_TRUE(workers.in_process->session().WaitUntilEnded(kPatience));
    daemon_->Start();
    ASSERT_TRUE(daemon_->WaitUntilReady());
    Reading still_reading(workers.in_process.get(), /*append=*/false);
    // Of a session that was closed in order the library refuses steps.
    const absl::Status status = still_reading.Stop();
    EXPECT_TRUE(status.ok() || absl::IsNotFound(status) || absl::IsUnavailable(status)) << status;
    Workers next = AttachBoth(/*adopt=*/true);
    ASSERT_TRUE(next.in_process != nullptr && next.rpc != nullptr);
    EXPECT_EQ(next.in_process->AllWrongRows().value_or(-1), 0);
    EXPECT_EQ(next.rpc->AllWrongRows().value_or(-1), 0);
    workers = std::move(next);
  }
}

TEST_F(DaemonDeath, OnHugePages) {
  constexpr int64_t kPoolBytes = int64_t{256} << 20;
  const std::string mount = folder_ + "/huge";
  std::filesystem::create_directory(mount);
  // Each cache's file takes two more, and a new cache is made before an old one's has gone.
  const HugePages pages(mount, kPoolBytes / kHugePageBytes + 32);
  if (!pages.why_not().empty()) GTEST_SKIP() << "no 2 MiB pages here: " << pages.why_not();
  StartDaemon(mount + "/pool", kPoolBytes);
  ASSERT_TRUE(daemon_->WaitUntilReady());
  Workers workers = AttachBoth(/*adopt=*/false);
  ASSERT_TRUE(workers.in_process != nullptr && workers.rpc != nullptr);
  for (int run = 0; run < 2; ++run) Die(absl::StrCat("on 2 MiB pages, ", run), &workers, [] {});
  workers = Workers();
  daemon_.reset();
}

// With as many pages as the pool has, and no more.
TEST_F(DaemonDeath, D20_ReservedPagesAreEnough) {
  constexpr int64_t kPoolBytes = int64_t{256} << 20;
  const HugePages pages(folder_, kPoolBytes / kHugePageBytes);
  if (!pages.why_not().empty()) GTEST_SKIP() << "no 2 MiB pages here: " << pages.why_not();
  daemon_ = std::make_unique<e2e::Daemon>(e2e::DaemonOptions{
      .pool_bytes = kPoolBytes, .backend = kBackendName, .flags = {"--huge_pages=require"}});
  EXPECT_TRUE(daemon_->WaitUntilReady());
  EXPECT_EQ(daemon_->Stop(), 0);
}

}  // namespace
}  // namespace kvtier::testing
