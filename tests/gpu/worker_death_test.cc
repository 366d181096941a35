// kill -9 of a worker in every phase of its life, beside two others that read on.
//
// Built twice: for a GPU (KVTIER_TEST_CUDA in victim.cc; skipped, and said so, where there is
// none), and for the CPU. Prints how long it takes until all that the worker held is back.
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "tests/e2e/daemon.h"
#include "tests/gpu/reader.h"
#include "tests/gpu/victim.h"

namespace kvtier::testing {
namespace {

using e2e::kPatience;

// All that a dead worker held is back within this.
constexpr absl::Duration kBackWithin = absl::Seconds(1);

class WorkerDeath : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string why = WhyNoDevice();
    if (!why.empty()) GTEST_SKIP() << why;
    alarm(240);  // a test that hangs ends here
    daemon_ = std::make_unique<e2e::Daemon>(
        e2e::DaemonOptions{.pool_bytes = int64_t{1} << 30, .backend = kBackendName});
    for (const demo::Plane plane : {demo::Plane::kInProcess, demo::Plane::kRpc}) {
      // One of them shares the victims' cache.
      const bool in_process = plane == demo::Plane::kInProcess;
      auto reader = Reader::Start({.socket_path = daemon_->socket_path(),
                                   .cache = in_process ? "kv" : "other",
                                   .plane = plane,
                                   .salt = in_process ? 1 : 2});
      ASSERT_TRUE(reader.ok()) << reader.status();
      readers_.push_back(*std::move(reader));
    }
    for (const auto& reader : readers_) {
      reading_.push_back(std::make_unique<Reading>(reader.get(), /*append=*/true));
    }
  }

  // A victim's life and death; the time until all is back.
  absl::Duration Kill(const std::string& phase, int calls, const Usage& baseline) {
    Victim victim(daemon_->socket_path(), phase);
    EXPECT_TRUE(victim.WaitForCalls(calls)) << phase;
    const absl::Time killed = absl::Now();
    victim.Kill();
    return TimeUntilBack(*daemon_, baseline, killed);
  }

  void ExpectReaders(const std::string& after) {
    for (const auto& reading : reading_) {
      EXPECT_TRUE(reading->WaitForSteps(20, kPatience)) << after;
      EXPECT_EQ(reading->wrong_rows(), 0) << after;
    }
  }

  std::unique_ptr<e2e::Daemon> daemon_;
  std::vector<std::unique_ptr<Reader>> readers_;
  std::vector<std::unique_ptr<Reading>> reading_;
};

// Those that make a call again and again; the others make none in their phase.
bool Repeats(const std::string& phase) {
  for (const char* still : {"connected", "opened", "tokens", "attached", "between"}) {
    if (phase == still) return false;
  }
  return true;
}

TEST_F(WorkerDeath, D01_InEveryPhase) {
  if (HasFatalFailure()) return;
  // What a first victim makes for good: gRPC's own descriptors, the allocator's and the driver's
  // memory.
  Usage baseline = UsageOf(*daemon_);
  for (const char* phase : {"append", "run_steps", "caches"}) {
    Victim victim(daemon_->socket_path(), phase);
    EXPECT_TRUE(victim.WaitForCalls(3)) << phase;
    victim.Kill();
    EXPECT_TRUE(daemon_->WaitForStats([&](const v1::GetStatsResponse& stats) {
      return stats.sessions() == baseline.sessions &&
             stats.pool().used_bytes() == baseline.pool_bytes;
    }));
  }
  baseline = UsageOf(*daemon_);
  std::printf("baseline: %s\n", Describe(baseline).c_str());
  std::vector<absl::Duration> times;
  int calls = 0;
  for (const std::string phase : kVictimPhases) {
    // Killed at its first call, or after some, most likely in the middle of one.
    calls = (calls + 7) % 16;
    times.push_back(Kill(phase, Repeats(phase) ? calls : 0, baseline));
    std::printf("killed in %-12s all back after %5.0f ms\n", phase.c_str(),
                absl::ToDoubleMilliseconds(times.back()));
    EXPECT_NE(times.back(), absl::InfiniteDuration())
        << phase << ": " << Describe(UsageOf(*daemon_)) << ", before: " << Describe(baseline);
    ExpectReaders(phase);
  }
  // The median: a machine that does much else may be late once.
  std::sort(times.begin(), times.end());
  std::printf("all back: median %.0f ms, at most %.0f ms\n",
              absl::ToDoubleMilliseconds(times[times.size() / 2]),
              absl::ToDoubleMilliseconds(times.back()));
  EXPECT_LT(times[times.size() / 2], kBackWithin);
  for (const auto& reading : reading_) EXPECT_TRUE(reading->Stop().ok()) << reading->Stop();
  for (const auto& reader : readers_) {
    EXPECT_EQ(reader->AllWrongRows().value_or(-1), 0);
    EXPECT_EQ(reader->WrongAppendedRows().value_or(-1), 0);
  }
  EXPECT_GT(readers_[0]->cache().counts(0)[Counter::kMisses], 0);
  reading_.clear();
  readers_.clear();
  EXPECT_EQ(daemon_->Stop(), 0);
}

}  // namespace
}  // namespace kvtier::testing
