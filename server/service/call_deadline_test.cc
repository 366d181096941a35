#include "server/service/call_deadline.h"

#include "gtest/gtest.h"

namespace kvtier {
namespace {

using TimePoint = std::chrono::system_clock::time_point;

const absl::Time kNow = absl::FromUnixSeconds(1'000'000'000);

TimePoint In(absl::Duration duration) { return absl::ToChronoTime(kNow + duration); }

TEST(CallDeadlineTest, TheClientsOwnUnlessItIsTooFar) {
  EXPECT_EQ(LimitDeadline(In(absl::Seconds(2)), kNow, kCallDurationMax), kNow + absl::Seconds(2));
  EXPECT_EQ(LimitDeadline(In(-absl::Seconds(2)), kNow, kCallDurationMax), kNow - absl::Seconds(2));
  EXPECT_EQ(LimitDeadline(In(absl::Hours(24)), kNow, kCallDurationMax), kNow + kCallDurationMax);
}

TEST(CallDeadlineTest, AnAttachMayTakeAsLongAsItsClientWaits) {
  EXPECT_EQ(LimitDeadline(In(absl::Minutes(5)), kNow, kAttachDurationMax), kNow + absl::Minutes(5));
  EXPECT_EQ(LimitDeadline(In(absl::Hours(24)), kNow, kAttachDurationMax),
            kNow + kAttachDurationMax);
}

TEST(CallDeadlineTest, NoDeadlineIsTheUsualOne) {
  EXPECT_EQ(LimitDeadline(TimePoint::max(), kNow, kCallDurationMax), kNow + kCallDurationMax);
  EXPECT_EQ(LimitDeadline(TimePoint::max(), kNow, kAttachDurationMax), kNow + kCallDurationMax);
}

}  // namespace
}  // namespace kvtier
