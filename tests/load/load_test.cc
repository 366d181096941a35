// The parts of the load, each for a moment: does the daemon go on for those who behave? Cases D17
// (connections that say nothing) and D27 (too much at once).
#include <algorithm>
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
    CallTimes times;
    std::vector<HostileResult> results;
    {
      Watch watch(daemon_.pid(), daemon_.socket_path(), absl::Milliseconds(200), &times);
      std::vector<std::future<WorkerResult>> workers;
      for (int32_t number = 0; number < 2; ++number) {
        workers.push_back(std::async(std::launch::async, [&, number] { return Work(number); }));
      }
      for (std::future<WorkerResult>& worker : workers) ExpectGood(worker.get());
      for (auto& one : running) {
        absl::StatusOr<HostileResult> result = one.get();
        EXPECT_TRUE(result.ok()) << result.status();
        if (result.ok()) results.push_back(*std::move(result));
      }
      for (const Look& look : watch.End()) {
        memory_max_ = std::max(memory_max_, look.process.anonymous_bytes);
      }
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
  const std::vector<HostileResult> results =
      Attack({{.kind = "streams",
               .address = unix_socket(),
               .count = 2000,
               .enough = [](const HostileResult& result) { return result.opened > 0; }}});
  EXPECT_GT(results[0].opened, 0);
  ExpectBaseline(before);
}

// 64 requests of 32 MiB are 2 GiB.
TEST_F(LoadTest, D27_LargeRequestsOnManyCallsAreReceivedByTurns) {
  const ProcessSample before = Sample();
  const std::vector<HostileResult> results = Attack({{.kind = "large_requests",
                                                      .address = unix_socket(),
                                                      .count = 64,
                                                      .enough = [](const HostileResult& result) {
                                                        return result.sent_bytes > int64_t{100}
                                                                                       << 20;
                                                      }}});
  EXPECT_GT(results[0].sent_bytes, int64_t{100} << 20);
  EXPECT_LT(results[0].sent_bytes, int64_t{400} << 20);
  EXPECT_LT(memory_max_, before.anonymous_bytes + (int64_t{400} << 20));
  ExpectBaseline(before);
}

// It does not acknowledge the settings that say how many it may have.
TEST_F(LoadTest, D27_CallsOfOneConnectionAreCountedAlsoIfItDoesNotListen) {
  const std::vector<HostileResult> results = Attack(
      {{.kind = "large_requests",
        .address = unix_socket(),
        .count = 1000,
        .enough = [](const HostileResult& result) { return result.answered >= 1000 - 256; }}});
  EXPECT_GE(results[0].answered, 1000 - 256);
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
