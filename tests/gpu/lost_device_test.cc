// A device that is lost, and one that never comes to an end, in a real daemon (broken_backend.cc).
//
// On a GPU both are real: a kernel of the daemon's own process that writes where nothing is, and
// one that keeps every multiprocessor. Built twice, as worker_death_test.cc.
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <system_error>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "client/cli/admin.h"
#include "client/error.h"
#include "gtest/gtest.h"
#include "tests/e2e/daemon.h"
#include "tests/gpu/reader.h"
#include "tests/gpu/victim.h"

namespace kvtier::testing {
namespace {

using e2e::kPatience;

constexpr int kDeviceLost = 6, kStuck = 7;  // exit codes: server/main.cc
// What a caller of a wedged device waits for.
constexpr absl::Duration kCallTimeout = absl::Seconds(3);
// What must come about while a device is wedged, which broken_gpu.cu bounds.
constexpr absl::Duration kSoon = absl::Seconds(5);
constexpr absl::Duration kNotReadyAfter = absl::Seconds(10);  // kDevicePatience of the daemon

bool IsOkOrEnded(const absl::Status& status) {
  return status.ok() || absl::IsNotFound(status) || absl::IsUnavailable(status);
}

class LostDevice : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyNoDevice();
    if (!why.empty()) GTEST_SKIP() << why;
    alarm(240);  // a test that hangs ends here, before Bazel would leave its processes behind
    char name[] = "/dev/shm/kvtier-lost-XXXXXX";
    folder_ = mkdtemp(name);
    fifo_ = folder_ + "/break";
    ASSERT_EQ(mkfifo(fifo_.c_str(), 0600), 0);
    setenv("KVTIER_TEST_BREAK", fifo_.c_str(), 1);
    daemon_ = std::make_unique<e2e::Daemon>(
        e2e::DaemonOptions{.pool_bytes = int64_t{512} << 20,
                           .backend = kBackendName,
                           .flags = {"--pool_path=" + folder_ + "/pool", "--shutdown_grace=1s"},
                           .binary = "tests/gpu/broken_kvtierd",
                           .log_path = folder_ + "/log"});
    ASSERT_TRUE(daemon_->WaitUntilReady()) << Log();
    auto admin = cli::Admin::Create("unix:" + daemon_->socket_path(), cli::TlsOptions(), 2 * kSoon);
    ASSERT_TRUE(admin.ok()) << admin.status();
    admin_ = std::make_unique<cli::Admin>(*std::move(admin));
    in_process_ = Attach(demo::Plane::kInProcess, /*adopt=*/false);
    rpc_ = Attach(demo::Plane::kRpc, /*adopt=*/false);
    ASSERT_TRUE(in_process_ != nullptr && rpc_ != nullptr);
  }
  ~LostDevice() override {
    daemon_.reset();
    std::error_code ignored;
    if (!folder_.empty()) std::filesystem::remove_all(folder_, ignored);
  }

  std::unique_ptr<Reader> Attach(demo::Plane plane, bool adopt) {
    auto reader = Reader::Start({.socket_path = daemon_->socket_path(),
                                 .plane = plane,
                                 .salt = plane == demo::Plane::kInProcess ? 1 : 2,
                                 .adopt = adopt,
                                 .call_timeout = kCallTimeout});
    EXPECT_TRUE(reader.ok()) << reader.status() << Log();
    return reader.ok() ? *std::move(reader) : nullptr;
  }

  static std::string Content(const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  }
  std::string Log() const { return Content(folder_ + "/log"); }

  void Tell(const std::string& command) {
    std::ofstream(fifo_) << command << std::endl;
    const std::string told = absl::StrCat(++told_);
    const absl::Time give_up = absl::Now() + kPatience;
    while (Content(fifo_ + ".obeyed") != told && absl::Now() < give_up) sched_yield();
    ASSERT_EQ(Content(fifo_ + ".obeyed"), told) << Log();
  }

  // Where it stands, for who looks at the log of a run that hangs.
  void Say(const char* what) const {
    std::fprintf(stderr, "lost_device_test: %.1f s: %s\n",
                 absl::ToDoubleSeconds(absl::Now() - start_), what);
  }

  // Liveness and what operators read; the longest that one of them took.
  absl::Duration AskAll() {
    absl::Duration longest;
    const auto ask = [&](const absl::Status& answer, absl::Time start) {
      EXPECT_TRUE(answer.ok()) << answer;
      longest = std::max(longest, absl::Now() - start);
    };
    using Stub = v1::KvTierAdmin::Stub;
    absl::Time start = absl::Now();
    const absl::StatusOr<std::string> liveness = admin_->Health("liveness");
    ask(liveness.status(), start);
    EXPECT_EQ(liveness.value_or(""), "SERVING");
    start = absl::Now();
    ask(admin_->Health("").status(), start);
    start = absl::Now();
    ask(admin_->Call(&Stub::GetStats, v1::GetStatsRequest()).status(), start);
    start = absl::Now();
    ask(admin_->Call(&Stub::GetNodeInfo, v1::GetNodeInfoRequest()).status(), start);
    start = absl::Now();
    ask(admin_->Call(&Stub::ListSessions, v1::ListSessionsRequest()).status(), start);
    return longest;
  }

  // A swap-in whose caller waits for it ends at its deadline. Its inputs are those of a step
  // before.
  static void ExpectLate(Reader* reader) {
    const absl::Status late = reader->cache().SwapInRpc(0, 1, {}, /*wait=*/true).status();
    EXPECT_TRUE(absl::IsDeadlineExceeded(late)) << late;
  }

  // On a GPU a step that was answered waits on its own stream, for as long as it takes. Whoever
  // ends the session, here an operator, lets it go, and it does not take what it finds for rows.
  void ExpectLetGoByEviction() {
    Reading step(rpc_.get(), /*append=*/false);
    // Until it waits behind the one that hangs; it does not matter if it has not come so far.
    (void)step.WaitForSteps(1, absl::Seconds(1));
    v1::EvictSessionRequest evict;
    evict.set_session_id(rpc_->session().id());
    EXPECT_TRUE(admin_->Call(&v1::KvTierAdmin::Stub::EvictSession, evict).ok());
    EXPECT_TRUE(step.WaitUntilEnded(kSoon));
    // What holds it, if anything does, ends with the wedge.
    Tell("release");
    EXPECT_FALSE(step.Stop().ok());
    EXPECT_EQ(step.wrong_rows(), 0);
  }

  // Why it is not ready, once that is so; "" once it is ready.
  std::string WaitForReason(bool ready) {
    const absl::Time give_up = absl::Now() + kNotReadyAfter + kSoon;
    while (admin_->Health("").value_or("") != (ready ? "SERVING" : "NOT_SERVING") &&
           absl::Now() < give_up) {
      sched_yield();
    }
    return admin_->Call(&v1::KvTierAdmin::Stub::GetNodeInfo, v1::GetNodeInfoRequest())
        .value_or(v1::GetNodeInfoResponse())
        .not_ready_reason();
  }

  // What a supervisor does, and what workers find then.
  void ExpectServesAgain() {
    unsetenv("KVTIER_TEST_BREAK");
    daemon_->Start();
    ASSERT_TRUE(daemon_->WaitUntilReady()) << Log();
    for (const demo::Plane plane : {demo::Plane::kInProcess, demo::Plane::kRpc}) {
      const std::unique_ptr<Reader> next = Attach(plane, /*adopt=*/true);
      ASSERT_NE(next, nullptr);
      EXPECT_EQ(next->AllWrongRows().value_or(-1), 0);
    }
    EXPECT_EQ(daemon_->Stop(), 0);
  }

  std::string folder_, fifo_;
  int told_ = 0;
  const absl::Time start_ = absl::Now();
  std::unique_ptr<e2e::Daemon> daemon_;
  std::unique_ptr<cli::Admin> admin_;
  std::unique_ptr<Reader> in_process_, rpc_;
};

TEST_F(LostDevice, D23_AnIllegalAccessEndsTheProcessForItsSupervisor) {
  if (HasFatalFailure()) return;
  Reading in_process(in_process_.get(), /*append=*/false), rpc(rpc_.get(), /*append=*/false);
  ASSERT_TRUE(in_process.WaitForSteps(20, kPatience));
  ASSERT_TRUE(rpc.WaitForSteps(20, kPatience));
  const absl::Time start = absl::Now();
  Tell("illegal");
  EXPECT_TRUE(rpc.WaitUntilEnded(kPatience));
  const absl::Status told = rpc.Stop();
  // By the step, by the session's end, or by the end of the process: whichever came first.
  EXPECT_FALSE(told.ok());
  EXPECT_TRUE(IsOkOrEnded(told)) << told;
  EXPECT_EQ(rpc.wrong_rows(), 0);
  EXPECT_EQ(daemon_->Wait(), kDeviceLost) << Log();
  const absl::Duration ended = absl::Now() - start;
  EXPECT_LT(ended, absl::Seconds(5));
  EXPECT_TRUE(absl::StrContains(Log(), "event=not_ready")) << Log();
  EXPECT_TRUE(absl::StrContains(Log(), "illegal memory access") ||
              absl::StrContains(Log(), "cudaErrorIllegalAddress"))
      << Log();
  // The worker has a context of its own. It goes on, unless the library has heard that the session
  // was ended: then it refuses.
  (void)in_process.WaitForSteps(20, absl::Seconds(2));
  EXPECT_TRUE(IsOkOrEnded(in_process.Stop())) << in_process.Stop();
  EXPECT_EQ(in_process.wrong_rows(), 0);
  std::printf("device lost: exit code %d after %.0f ms; a worker was told %s (%s)\n", kDeviceLost,
              absl::ToDoubleMilliseconds(ended), client::ErrorReasonOf(told).c_str(),
              std::string(told.message()).c_str());
  ExpectServesAgain();
}

TEST_F(LostDevice, D24_ADeviceThatNeverEndsHoldsUpNobodyElse) {
  if (HasFatalFailure()) return;
  // What it takes for the first time stays.
  Tell("wedge");
  Tell("release");
  Say("wedged and released once");
  ASSERT_EQ(rpc_->WrongRows(0).value_or(-1), 0);
  const Usage before = UsageOf(*daemon_);
  Reading in_process(in_process_.get(), /*append=*/true);
  {
    // It goes the way of its worker, while its work hangs.
    Victim victim(daemon_->socket_path(), "attached");
    ASSERT_TRUE(victim.WaitForCalls(0));
    Tell("wedge");
    Say("wedged");
    const absl::Time start = absl::Now();
    ExpectLate(rpc_.get());
    EXPECT_LT(absl::Now() - start, kCallTimeout + absl::Seconds(2));
    Say("a call was late");
    victim.Kill();
    Say("a worker is dead");
  }
  absl::Duration longest;
  for (int i = 0; i < 20; ++i) longest = std::max(longest, AskAll());
  EXPECT_LT(longest, absl::Seconds(2));
  Say("operators were answered");
  EXPECT_TRUE(in_process.WaitForSteps(5, kSoon)) << "steps in a worker's own process";
  EXPECT_EQ(in_process.wrong_rows(), 0);
  Say("a worker steps on");
  // Readiness says why, once the device has had its time.
  const std::string reason = WaitForReason(/*ready=*/false);
  EXPECT_TRUE(absl::StrContains(reason, "has ended nothing")) << reason;
  EXPECT_EQ(admin_->Health("liveness").value_or(""), "SERVING");
  Say("readiness has gone");
  ExpectLetGoByEviction();
  Say("a stream was let go");
  Tell("release");
  EXPECT_EQ(WaitForReason(/*ready=*/true), "");
  Say("ready again");
  EXPECT_TRUE(in_process.WaitForSteps(20, kPatience)) << in_process.Stop();
  EXPECT_TRUE(in_process.Stop().ok()) << in_process.Stop();
  EXPECT_NE(TimeUntilBack(*daemon_, before, absl::Now()), absl::InfiniteDuration())
      << Describe(UsageOf(*daemon_)) << ", before: " << Describe(before);
  for (const demo::Plane plane : {demo::Plane::kInProcess, demo::Plane::kRpc}) {
    const std::unique_ptr<Reader> next = Attach(plane, /*adopt=*/false);
    ASSERT_NE(next, nullptr);
    EXPECT_EQ(next->AllWrongRows().value_or(-1), 0);
  }
  std::printf("wedged: the longest answer to operators took %.1f ms; not ready: %s\n",
              absl::ToDoubleMilliseconds(longest), reason.c_str());
  rpc_ = nullptr;
  in_process_ = nullptr;
  EXPECT_EQ(daemon_->Stop(), 0);
}

TEST_F(LostDevice, D18_ADeviceThatNeverEndsDoesNotHoldUpTheExit) {
  if (HasFatalFailure()) return;
  Tell("wedge");
  ExpectLate(rpc_.get());
  const absl::Time start = absl::Now();
  EXPECT_EQ(daemon_->Stop(), kStuck) << Log();
  const absl::Duration ended = absl::Now() - start;
  // A grace of 1 s and the watchdog's margin; then the kernel takes the process apart.
  EXPECT_LT(ended, absl::Seconds(8));
  EXPECT_TRUE(absl::StrContains(Log(), "event=stuck")) << Log();
  const absl::StatusOr<int> wrong = in_process_->AllWrongRows();
  EXPECT_TRUE(IsOkOrEnded(wrong.status())) << wrong.status();
  EXPECT_EQ(wrong.value_or(0), 0);
  std::printf("wedged: exit code %d after %.0f ms\n", kStuck, absl::ToDoubleMilliseconds(ended));
  ExpectServesAgain();
}

}  // namespace
}  // namespace kvtier::testing
