// The parts of the load, each for a moment: does the daemon go on for those who behave? Cases D17
// (connections that say nothing) and D27 (too much at once).
#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "tests/e2e/daemon.h"
#include "tests/load/hostile.h"
#include "tests/load/http2.h"
#include "tests/load/process_sample.h"
#include "tests/load/watch.h"
#include "tests/load/worker.h"

namespace kvtier::load {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int32_t kRequests = 20;

// An attack by a process of its own: of what one process asks for the daemon takes so much at a
// time, and in this one are those who behave. For kinds without gRPC: it is forked.
class HostileProcess {
 public:
  explicit HostileProcess(const HostileOptions& attack) {
    if (pipe2(ends_, O_CLOEXEC) != 0) return;
    pid_ = fork();
    if (pid_ != 0) return;
    const absl::StatusOr<HostileResult> result = BeHostile(attack);
    const Counts counts =
        result.ok() ? Counts{result->opened, result->closed, result->answered, result->sent_bytes}
                    : Counts{};
    _exit(result.ok() && write(ends_[1], &counts, sizeof(counts)) == sizeof(counts) ? 0 : 1);
  }
  ~HostileProcess() {
    for (const int end : ends_) close(end);
  }
  HostileProcess(const HostileProcess&) = delete;
  HostileProcess& operator=(const HostileProcess&) = delete;

  // When it has ended.
  absl::StatusOr<HostileResult> Result() {
    int status = -1;
    Counts counts = {};
    if (pid_ <= 0 || waitpid(pid_, &status, 0) != pid_ || status != 0 ||
        read(ends_[0], &counts, sizeof(counts)) != sizeof(counts)) {
      return absl::InternalError(absl::StrCat("an attack's process ended with status ", status));
    }
    return HostileResult{
        .opened = counts[0], .closed = counts[1], .answered = counts[2], .sent_bytes = counts[3]};
  }

 private:
  using Counts = std::array<int64_t, 4>;
  int ends_[2] = {-1, -1};
  pid_t pid_ = -1;
};

class LoadTest : public ::testing::Test {
 protected:
  LoadTest() : daemon_({.flags = {"--tcp=127.0.0.1:0"}}) {
    EXPECT_TRUE(daemon_.WaitUntilReady());
    grpc::ClientContext context;
    v1::GetNodeInfoResponse info;
    EXPECT_TRUE(daemon_.admin().GetNodeInfo(&context, v1::GetNodeInfoRequest(), &info).ok());
    for (const std::string& address : info.listen_addresses()) {
      if (!absl::StartsWith(address, "unix:")) tcp_ = address;
    }
  }

  std::string unix_socket() const { return "unix:" + daemon_.socket_path(); }
  std::string fd_socket() const { return "fd:" + daemon_.socket_path() + ".fd"; }

  // Attacks that go on while workers work, and then end, once each has done enough to be one.
  // Workers must not notice.
  std::vector<HostileResult> Attack(std::vector<HostileOptions> attacks,
                                    absl::Duration duration = absl::Seconds(3)) {
    std::vector<std::future<absl::StatusOr<HostileResult>>> running;
    for (HostileOptions& attack : attacks) {
      attack.end = absl::Now() + duration;
      running.push_back(std::async(std::launch::async, [attack] { return BeHostile(attack); }));
    }
    return WorkMeanwhile(&running);
  }

  HostileResult AttackApart(HostileOptions attack) {
    attack.end = absl::Now() + absl::Seconds(3);
    HostileProcess process(attack);
    std::vector<std::future<absl::StatusOr<HostileResult>>> running;
    running.push_back(std::async(std::launch::async, [&] {
      absl::StatusOr<HostileResult> result = process.Result();
      for (const auto& [name, us] : watch_times_.all()) answered_during_attack_ += us.size();
      return result;
    }));
    const std::vector<HostileResult> results = WorkMeanwhile(&running);
    return results.empty() ? HostileResult() : results[0];
  }

  std::vector<HostileResult> WorkMeanwhile(
      std::vector<std::future<absl::StatusOr<HostileResult>>>* running) {
    std::vector<HostileResult> results;
    {
      Watch watch(daemon_.pid(), daemon_.socket_path(), absl::Milliseconds(200), &watch_times_);
      std::vector<std::future<WorkerResult>> workers;
      for (int32_t number = 0; number < 2; ++number) {
        workers.push_back(std::async(std::launch::async, [&, number] { return Work(number); }));
      }
      for (std::future<WorkerResult>& worker : workers) ExpectGood(worker.get());
      for (auto& one : *running) {
        absl::StatusOr<HostileResult> result = one.get();
        EXPECT_TRUE(result.ok()) << result.status();
        if (result.ok()) results.push_back(*std::move(result));
      }
      for (const Look& look : watch.End()) {
        memory_max_ = std::max(memory_max_, look.process.anonymous_bytes);
      }
      EXPECT_EQ(watch.errors(), 0) << watch.first_error();
    }
    return results;
  }

  WorkerResult Work(int32_t number) {
    CallTimes times;
    return Worker(
               {.socket_path = daemon_.socket_path(), .number = number, .requests_per_session = 5},
               &times)
        .RunRequests(kRequests);
  }

  static void ExpectGood(const WorkerResult& result) {
    EXPECT_EQ(result.errors, 0) << result.first_error;
    EXPECT_EQ(result.requests, kRequests);
    EXPECT_EQ(result.sessions, kRequests / 5);
    EXPECT_GT(result.rows_checked, 0);
    EXPECT_EQ(result.wrong_rows, 0);
  }

  // Of 48 and more, one after the other. Who is held up until the attack moves on has three, one a
  // second; on a machine that does much else there are 30.
  void ExpectLooksWereAnswered() { EXPECT_GE(answered_during_attack_, 12u); }

  // Everything that attackers and workers held comes back.
  void ExpectBaseline(const ProcessSample& before) {
    EXPECT_TRUE(daemon_.WaitForStats([&](const v1::GetStatsResponse& stats) {
      const absl::StatusOr<ProcessSample> now = SampleProcess(daemon_.pid());
      return stats.sessions() == 0 && stats.pool().used_bytes() == 0 && now.ok() &&
             now->descriptors <= before.descriptors;
    })) << "descriptors: "
        << before.descriptors << ", then " << SampleProcess(daemon_.pid())->descriptors;
  }

  ProcessSample Sample() {
    const absl::StatusOr<ProcessSample> sample = SampleProcess(daemon_.pid());
    EXPECT_TRUE(sample.ok()) << sample.status();
    return sample.ok() ? *sample : ProcessSample();
  }

  e2e::Daemon daemon_;
  std::string tcp_;
  int64_t memory_max_ = 0;  // of the daemon, during the attacks
  CallTimes watch_times_;   // likewise, of those who only look
  size_t answered_during_attack_ = 0;
};

TEST_F(LoadTest, WorkersByThemselves) {
  ExpectGood(Work(0));
  const ProcessSample before = Sample();
  EXPECT_THAT(Attack({}), IsEmpty());
  ExpectBaseline(before);
}

TEST_F(LoadTest, D17_ThousandsOfSilentConnections) {
  const ProcessSample before = Sample();
  const auto many = [](const HostileResult& result) { return result.opened >= 500; };
  const auto too_many = [](const HostileResult& result) {
    return result.opened >= 500 && result.closed > 0;
  };
  const std::vector<HostileResult> results =
      Attack({{.kind = "silent", .address = unix_socket(), .count = 2000, .enough = too_many},
              {.kind = "silent", .address = tcp_, .count = 500, .enough = many},
              {.kind = "silent", .address = fd_socket(), .count = 2000, .enough = many}});
  for (const HostileResult& result : results) EXPECT_GE(result.opened, 500);
  // They wait, and cost next to nothing.
  EXPECT_GT(results[0].closed, 0) << "nobody had to give way";
  ExpectBaseline(before);
}

TEST_F(LoadTest, D17_ConnectionsBrokenOffInTheHandshake) {
  const ProcessSample before = Sample();
  const auto many = [](const HostileResult& result) { return result.opened > 100; };
  const std::vector<HostileResult> results =
      Attack({{.kind = "handshakes", .address = unix_socket(), .count = 500, .enough = many},
              {.kind = "handshakes", .address = tcp_, .count = 200, .enough = many}});
  for (const HostileResult& result : results) EXPECT_GT(result.opened, 100);
  ExpectBaseline(before);
}

TEST_F(LoadTest, D17_HalfFramesAndSingleBytes) {
  const ProcessSample before = Sample();
  const auto all = [](const HostileResult& result) { return result.opened >= 50; };
  const std::vector<HostileResult> results =
      Attack({{.kind = "half_frames", .address = unix_socket(), .count = 50, .enough = all},
              {.kind = "half_frames", .address = tcp_, .count = 50, .enough = all},
              {.kind = "drip", .address = unix_socket(), .count = 50, .enough = all},
              {.kind = "drip", .address = tcp_, .count = 50, .enough = all}});
  for (const HostileResult& result : results) EXPECT_GE(result.opened, 50);
  ExpectBaseline(before);
}

TEST_F(LoadTest, D27_ManyCallsOnOneConnection) {
  const ProcessSample before = Sample();
  const HostileResult result =
      AttackApart({.kind = "streams", .address = unix_socket(), .count = 2000});
  EXPECT_GT(result.opened, 0);
  ExpectLooksWereAnswered();
  ExpectBaseline(before);
}

// 64 requests of 32 MiB are 2 GiB.
TEST_F(LoadTest, D27_LargeRequestsOnManyCallsAreReceivedByTurns) {
  const ProcessSample before = Sample();
  const HostileResult result = AttackApart(
      {.kind = "large_requests",
       .address = unix_socket(),
       .count = 64,
       .enough = [](const HostileResult& r) { return r.sent_bytes > int64_t{100} << 20; }});
  EXPECT_GT(result.sent_bytes, int64_t{100} << 20);
  EXPECT_LT(result.sent_bytes, int64_t{400} << 20);
  ExpectLooksWereAnswered();
  EXPECT_LT(memory_max_, before.anonymous_bytes + (int64_t{400} << 20));
  ExpectBaseline(before);
}

// It does not acknowledge the settings that say how many it may have.
TEST_F(LoadTest, D27_CallsOfOneConnectionAreCountedAlsoIfItDoesNotListen) {
  const HostileResult result =
      AttackApart({.kind = "large_requests",
                   .address = unix_socket(),
                   .count = 1000,
                   .enough = [](const HostileResult& r) { return r.answered >= 1000 - 256; }});
  EXPECT_GE(result.answered, 1000 - 256);
  ExpectLooksWereAnswered();
}

TEST_F(LoadTest, SessionsWhoseEventsAreNeverRead) {
  const ProcessSample before = Sample();
  const std::vector<HostileResult> results =
      Attack({{.kind = "unread_calls",
               .address = unix_socket(),
               .count = 8,
               .enough = [](const HostileResult& result) { return result.answered >= 8; }}});
  EXPECT_EQ(results[0].answered, 8) << "sessions were not opened";
  EXPECT_EQ(results[0].closed, 0) << "who only listens badly is a worker all the same";
  ExpectBaseline(before);
}

TEST_F(LoadTest, AnswersThatAreNeverReadAreBounded) {
  const ProcessSample before = Sample();
  const std::vector<HostileResult> results =
      Attack({{.kind = "unread_steps", .address = unix_socket(), .count = 1},
              {.kind = "unread_unary", .address = unix_socket(), .count = 64}});
  EXPECT_GT(results[1].answered, 32) << "so many steps were asked for";
  // 64 answers of 4 MB take gigabytes as messages. Steps are held back, calls are refused.
  EXPECT_LT(Sample().anonymous_bytes, int64_t{900} << 20);
  ExpectBaseline(before);
}

}  // namespace
}  // namespace kvtier::load
