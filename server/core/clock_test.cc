#include "server/core/clock.h"

#include <vector>

#include "absl/time/clock.h"
#include "gtest/gtest.h"
#include "server/core/thread.h"

namespace kvtier {
namespace {

TEST(ClockTest, SystemClockIsTheMachines) {
  const SystemClock clock;
  const absl::Time before = absl::Now();
  const absl::Time now = clock.Now();
  EXPECT_LE(before, now);
  EXPECT_LE(now, absl::Now());
}

TEST(ClockTest, ManualClockMovesWhenTold) {
  ManualClock clock(absl::FromUnixSeconds(100));
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(100));
  clock.Advance(absl::Milliseconds(250));
  EXPECT_EQ(clock.Now(), absl::FromUnixMillis(100250));
}

TEST(ClockTest, ManualClockIsThreadSafe) {
  ManualClock clock(absl::UnixEpoch());
  {
    std::vector<Thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.push_back(*Thread::Start("clock", [&clock] {
        for (int k = 0; k < 100; ++k) {
          const absl::Time before = clock.Now();
          clock.Advance(absl::Seconds(1));
          EXPECT_LT(before, clock.Now());
        }
      }));
    }
  }
  EXPECT_EQ(clock.Now(), absl::FromUnixSeconds(400));
}

}  // namespace
}  // namespace kvtier
